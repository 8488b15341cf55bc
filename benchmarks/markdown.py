"""Results of finished runs as the Markdown tables of docs/results.md, and their geometric means by cache state.

    python -m benchmarks.markdown runs/ID/result.json [...] [--star float16 --below 16384]

--star marks the timings of that dtype whose axes are all smaller, Astra's shapes in this catalog, and adds their means up.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path

from harness.records import Interval
from harness.report.result import Result, WorkloadRow
from harness.report.words import the_baseline


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--star", metavar="DTYPE", default="")
    parser.add_argument("--below", type=int, metavar="SIZE", default=sys.maxsize)
    options = parser.parse_args()
    starred: list[WorkloadRow] = []
    for path in options.files:
        result = Result.model_validate_json(path.read_text())
        stars = [
            row
            for row in result.workloads
            if row.dtype == options.star and not row.held_out and max(row.axes.values()) < options.below
        ]
        starred += stars
        print("\n".join(lines(result, stars)))
    if starred:
        print(f"{len(starred)} timings with a star: {', '.join(means(starred))}.")


def lines(result: Result, stars: list[WorkloadRow]) -> list[str]:
    held_out = [row for row in result.workloads if row.held_out]
    visible = [row for row in result.workloads if not row.held_out]
    speedup = "no improvement found" if result.speedup is None else times(result.speedup.median, result.speedup)
    kept = [" + ".join(attempt.plan.steps) or attempt.plan.title for attempt in result.attempts if attempt.accepted]
    passed = sum(attempt.outcome == "PASSED" for attempt in result.attempts)
    rows = [
        f"### {result.kernel} against {the_baseline(result.baseline)}: {speedup}",
        "",
        f"{', '.join(means(visible))}; held out {', '.join(means(held_out))}. {len(result.attempts)} attempts, {passed} PASSED, "
        f"ended by {result.stop_reason}. Kept: {'; then '.join(kept) or 'nothing'}.",
        "",
        "| workload | | cache | baseline | best | speedup | verdict | of light |",
        "|---|---|---|---:|---:|---:|---|---:|",
    ]
    for row in [*visible, *held_out]:
        label = "×".join(str(size) for size in row.axes.values()) + f" {row.dtype}{'*' if row in stars else ''}"
        light = "" if row.light is None or row.light.fraction is None else f"{100 * row.light.fraction:.0f} %"
        rows.append(
            f"| {label} | {'held out' if row.held_out else 'visible'} | {row.cache} | {row.baseline_us:.2f} | "
            f"{row.best_us:.2f} | {times(row.speedup.median, row.speedup)} | {row.comparison} | {light} |"
        )
    return [*rows, ""]


def means(rows: list[WorkloadRow]) -> list[str]:
    """`cold 1.50x, hot 1.91x`: geometric means of the medians."""
    said = []
    for cache in ("cold", "hot"):
        speedups = [row.speedup.median for row in rows if row.cache == cache]
        if speedups:
            said.append(f"{cache} {statistics.geometric_mean(speedups):.3f}x")
    return said


def times(median: float, interval: Interval) -> str:
    return f"{median:.2f}x {interval.low:.2f}–{interval.high:.2f}"


if __name__ == "__main__":
    main()
