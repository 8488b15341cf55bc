"""One agent or four, at the same budget: Astra's comparison, on every kernel of the catalog.

    python -m benchmarks.agents [--kernels silu_and_mul ...] [--rounds 5] -- --policy chat --model NAME --tokens 200000

What follows `--` goes to every `run.py` call as it is. Runs are kept in runs/ under names that say what they were; an
interrupted comparison goes on where it stopped when it is called again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.report.result import Result
from kernels import catalog

ROOT = Path(__file__).resolve().parent.parent


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=catalog.names(), choices=catalog.names())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs")
    parser.add_argument("rest", nargs="*", help="options of run.py, after --")
    options = parser.parse_args()
    table = Table(title=f"{options.rounds} rounds each")
    for column in ("kernel", "agents", "speedup", "held out", "attempts passed", "tokens", "seconds", "ended"):
        table.add_column(column, justify="right")
    for kernel in options.kernels:
        for agents in ("single", "four"):
            result = run(kernel, agents, options)
            if result is None:
                return 1
            speedup, held_out = result.speedup, result.held_out_speedup
            passed = sum(attempt.outcome == "PASSED" for attempt in result.attempts)
            table.add_row(
                kernel,
                agents,
                f"{speedup.median:.2f}x {speedup.low:.2f}-{speedup.high:.2f}" if speedup else "none",
                f"{held_out.median:.2f}x" if held_out else "none",
                f"{passed} of {len(result.attempts)}",
                str(result.spent.tokens_in + result.spent.tokens_out),
                f"{result.spent.seconds:.0f}",
                result.stop_reason,
            )
    Console(width=130).print(table)
    return 0


def run(kernel: str, agents: str, options: argparse.Namespace) -> Result | None:
    """The finished run of that name; started, or gone on with, where it has not finished. None where it cannot finish."""
    name = f"agents-{kernel}-{agents}"
    kept = options.runs_dir / name / "result.json"
    if kept.exists() and (result := Result.model_validate_json(kept.read_text())).status == "finished":
        return result
    where = ["--runs-dir", str(options.runs_dir), "--json"]
    if kept.parent.exists():
        command = ["resume", name, *where]
    else:
        command = [
            "--kernel", kernel, "--agents", agents, "--rounds", str(options.rounds), "--run-id", name, *where, *options.rest
        ]  # fmt: skip
    done = subprocess.run([sys.executable, str(ROOT / "run.py"), *command], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):
        print(f"{name} ended with code {done.returncode}; call this again to go on", file=sys.stderr)
        return None
    return Result.model_validate(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
