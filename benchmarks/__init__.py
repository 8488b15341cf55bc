"""Scripts that measure Astrolabe itself; run as `python -m benchmarks.NAME`. Figures go into docs/results.md."""
