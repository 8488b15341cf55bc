"""The way out of a run: a package, or one file, that works without Astrolabe."""
