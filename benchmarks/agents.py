"""One agent or four, at the same budget: Astra's comparison (its table 3), on every kernel of the catalog.

    python -m benchmarks.agents [--kernels silu_and_mul ...] [--rounds 5] -- --policy chat --model NAME
    python -m benchmarks.agents --recorded tests/graph/recorded --kernels silu_and_mul -- --device cpu

Both get the same tokens, seconds of tools (a round) and seconds in all; where they ran out says `ended`. The table says what each used, and
how long the device worked for the verdicts. What follows `--` goes to every `run.py` call as it is. With --recorded the answers are played back from KERNEL.jsonl and
KERNEL.single.jsonl (KERNEL.cuda.jsonl ... on a GPU), and tokens and money are what they cost when they were recorded. Runs are kept under names that say what they were; an interrupted comparison goes on where it
stopped when it is called again.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table

from harness.report.result import Result
from kernels import catalog
from nodes.policies.transcript import Transcript
from nodes.roles import Usage

ROOT = Path(__file__).resolve().parent.parent
AGENTS = ("single", "four")
JUDGES = ("baseline", "verify", "tune", "measure", "contest", "held_out")
"""Nodes that work on the device."""


@dataclass(frozen=True)
class Row:
    """One run: what it reached, and what that cost."""

    result: Result
    usage: Usage

    @property
    def speedup(self) -> float:
        """1.0 where the baseline stayed."""
        return self.result.speedup.median if self.result.improved and self.result.speedup else 1.0

    def cells(self) -> list[str]:
        found, passed = self.result, sum(attempt.outcome == "PASSED" for attempt in self.result.attempts)
        interval = f"{found.speedup.low:.2f}-{found.speedup.high:.2f}" if found.improved and found.speedup else ""
        held_out = f"{found.held_out_speedup.median:.2f}x" if found.held_out_speedup else "-"
        rounds = max((attempt.round for attempt in found.attempts), default=0)
        tokens = self.usage.tokens_in + self.usage.tokens_out
        return [
            f"{self.speedup:.2f}x {interval}".strip(), held_out, f"{passed} of {len(found.attempts)}",
            f"{found.best_round} of {rounds}", str(self.usage.calls), f"{tokens:,}", money(self.usage.money_usd),
            f"{sum(attempt.tool_seconds for attempt in found.attempts):.0f}",
            f"{sum(found.spent.nodes.get(node, 0.0) for node in JUDGES):.0f}", f"{found.spent.seconds:.0f}",
            found.stop_reason,
        ]  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernels", nargs="+", default=catalog.names(), choices=catalog.names())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=200_000, help="of a run, all roles together")
    parser.add_argument("--tool-seconds", type=float, default=240.0, help="of a round's tools")
    parser.add_argument("--seconds", type=float, default=3600.0, help="of a run")
    parser.add_argument("--recorded", type=Path, metavar="FOLDER", help="play recorded answers back")
    parser.add_argument("--runs-dir", type=Path, default=ROOT / "runs")
    parser.add_argument("rest", nargs="*", help="options of run.py, after --")
    options = parser.parse_args()
    found: dict[str, dict[str, Row]] = {}
    for kernel in options.kernels:
        for agents in AGENTS:
            recording = find_recording(kernel, agents, options)
            if options.recorded and recording is None:
                print(f"{kernel}: no answers of {agents} are recorded in {options.recorded}", file=sys.stderr)
                continue
            result = run(kernel, agents, options, recording)
            if result is None:
                return 1
            found.setdefault(kernel, {})[agents] = Row(result, cost(result, recording))
    Console(width=180).print(print_table(found, options.rounds))
    return 0


def print_table(found: dict[str, dict[str, Row]], rounds: int) -> Table:
    table = Table(title=f"one agent and four, {rounds} rounds each at most")
    for column in (
        "kernel", "baseline us", "agents", "speedup", "held out", "passed", "best in round", "answers", "tokens", "money", "tools s",
        "device s", "seconds", "ended",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("kernel", "agents") else "right")
    for kernel, rows in found.items():
        for agents, row in rows.items():
            times = [one.baseline_us for one in row.result.workloads if not one.held_out]
            base = f"{statistics.geometric_mean(times):.1f}" if times else "-"
            table.add_row(kernel, base, agents, *row.cells())
    table.add_section()
    for agents in AGENTS:
        rows = [each[agents] for each in found.values() if agents in each]
        if rows:
            tokens = sum(row.usage.tokens_in + row.usage.tokens_out for row in rows)
            costs = [row.usage.money_usd for row in rows]
            total = None if None in costs else sum(cost for cost in costs if cost is not None)
            mean = f"{statistics.geometric_mean([row.speedup for row in rows]):.2f}x"
            seconds = f"{sum(row.result.spent.seconds for row in rows):.0f}"
            calls = str(sum(row.usage.calls for row in rows))
            cells = [mean, "", "", "", calls, f"{tokens:,}", money(total), "", "", seconds, ""]
            table.add_row("geometric mean", "", agents, *cells)
    return table


def money(usd: float | None) -> str:
    return "unknown" if usd is None else f"${usd:.2f}"


def find_recording(kernel: str, agents: str, options: argparse.Namespace) -> Path | None:
    if options.recorded is None:
        return None
    rest = options.rest
    on = rest[rest.index("--device") + 1] if "--device" in rest else "cuda"
    path = (
        options.recorded / f"{kernel}{'.cuda' if on == 'cuda' else ''}{'.single' if agents == 'single' else ''}.jsonl"
    )
    return path if path.is_file() else None


def cost(result: Result, recording: Path | None) -> Usage:
    if recording is None:
        spent = result.spent
        return Usage(
            calls=spent.calls, tokens_in=spent.tokens_in, tokens_out=spent.tokens_out, money_usd=spent.money_usd
        )
    total = Usage()
    for usage in Transcript(recording).usage().values():
        total = total.plus(usage)
    return total


def run(kernel: str, agents: str, options: argparse.Namespace, recording: Path | None) -> Result | None:
    """The finished run of that name; started, or gone on with, where it has not finished. None where it cannot finish."""
    name = f"agents-{kernel}-{agents}"
    kept = options.runs_dir / name / "result.json"
    if kept.exists() and (result := Result.model_validate_json(kept.read_text())).status == "finished":
        return result
    where = ["--runs-dir", str(options.runs_dir), "--json"]
    if (options.runs_dir / name / "run.json").exists():
        command = ["resume", name, *where]
    else:
        answers = ["--policy", "replay", "--transcript", str(recording)] if recording else []
        command = [
            "--kernel", kernel, "--agents", agents, "--rounds", str(options.rounds), "--run-id", name, "--tokens", str(options.tokens),
            "--tool-seconds", str(options.tool_seconds), "--seconds", str(options.seconds), *where, *answers, *options.rest,
        ]  # fmt: skip
    done = subprocess.run([sys.executable, str(ROOT / "run.py"), *command], stdout=subprocess.PIPE, text=True)
    if done.returncode not in (0, 3):
        print(f"{name} ended with code {done.returncode}; call this again to go on", file=sys.stderr)
        return None
    return Result.model_validate(json.loads(done.stdout))


if __name__ == "__main__":
    sys.exit(main())
