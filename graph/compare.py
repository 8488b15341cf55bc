"""`run.py compare`: what two runs, or two files of results, say of the same workloads."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from graph.result import geometric_mean
from graph.runs import RunError
from harness.records import Interval, Timing
from harness.report.result import Result, WorkloadRow


@dataclass(frozen=True)
class ComparedRun:
    """One of the two: times of its best file against its baseline."""

    name: str
    kernel: str
    device: str
    source: str
    """sha256 of the baseline's source, "" where the file does not say."""
    rows: tuple[WorkloadRow, ...]


@dataclass(frozen=True)
class Pair:
    """One workload and cache state that both have. `ratio`: how many times faster the second's file is than the first's."""

    first: WorkloadRow
    second: WorkloadRow
    ratio: Interval


@dataclass(frozen=True)
class Compared:
    first: ComparedRun
    second: ComparedRun
    pairs: tuple[Pair, ...]
    overall: Interval
    """Geometric mean of the ratios, as if independent."""
    common_baseline: bool
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        rows = [
            {
                "axes": pair.first.axes, "dtype": pair.first.dtype, "cache": pair.first.cache,
                "held_out": pair.first.held_out, "first_us": pair.first.best_us, "second_us": pair.second.best_us,
                "first_speedup": pair.first.speedup.model_dump(), "second_speedup": pair.second.speedup.model_dump(),
                "ratio": pair.ratio.model_dump(),
            }
            for pair in self.pairs
        ]  # fmt: skip
        names = {"first": self.first.name, "second": self.second.name}
        return names | {"overall": self.overall.model_dump(), "workloads": rows, "notes": list(self.notes)}


def of_result(result: Result) -> ComparedRun:
    return ComparedRun(result.run_id, result.kernel, result.device_name, result.source, result.workloads)


def of_file(path: Path) -> ComparedRun:
    """`result.json` of a run, or what `evaluate --json` printed. Raises RunError where it is neither."""
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, ValueError) as error:
        raise RunError(f"{path} cannot be read: {error}") from None
    try:
        if isinstance(read, dict) and "timings" in read:
            rows = tuple(WorkloadRow.of(Timing.model_validate(timing)) for timing in read["timings"])
            return ComparedRun(str(read.get("file") or path), str(read["kernel"]), str(read["device"]), "", rows)
        return of_result(Result.model_validate(read))
    except (ValidationError, KeyError, TypeError):
        raise RunError(f"{path} is neither a run's result.json nor what `evaluate --json` prints") from None


def find(name: str, of_run: Callable[[str], Result]) -> ComparedRun:
    """A run by its name, or a file by its path."""
    path = Path(name)
    return of_file(path) if path.suffix == ".json" or path.is_file() else of_result(of_run(name))


def compare(first: ComparedRun, second: ComparedRun) -> Compared:
    """Raises RunError where they have nothing in common that was timed."""
    if first.kernel != second.kernel:
        raise RunError(
            f"{first.name} is of {first.kernel}, {second.name} of {second.kernel}: there is nothing to compare"
        )
    theirs = {_key(row): row for row in second.rows}
    common = bool(first.source) and first.source == second.source and first.device == second.device
    pairs = tuple(
        Pair(row, theirs[_key(row)], _ratio(row, theirs[_key(row)], common))
        for row in first.rows
        if _key(row) in theirs
    )
    if not pairs:
        raise RunError(f"{first.name} and {second.name} have timed no workload in common")
    overall = geometric_mean(pair.ratio for pair in pairs)
    assert overall is not None
    return Compared(first, second, pairs, overall, common, tuple(_notes(first, second, common, len(pairs))))


def _key(row: WorkloadRow) -> tuple[Any, ...]:
    return row.dtype, row.cache, row.company, *sorted(row.axes.items())


def _ratio(first: WorkloadRow, second: WorkloadRow, common: bool) -> Interval:
    """Over a common baseline, of the two speedups, each timed beside it: what the machine did meanwhile falls out."""
    if not common:
        ratio = first.best_us / second.best_us
        return Interval(median=ratio, low=ratio, high=ratio)
    a, b = first.speedup, second.speedup
    below = math.hypot(math.log(b.median / b.low), math.log(a.high / a.median))
    above = math.hypot(math.log(b.high / b.median), math.log(a.median / a.low))
    middle = b.median / a.median
    return Interval(median=middle, low=middle * math.exp(-below), high=middle * math.exp(above))


def _notes(first: ComparedRun, second: ComparedRun, common: bool, both: int) -> list[str]:
    said = []
    if common:
        said.append("each was timed beside the same baseline: the ratio is that of the two speedups")
    else:
        said.append("not over a common baseline: the ratio is of times from different moments, without an interval")
    if first.device != second.device:
        said.append(f"measured on {first.device} and on {second.device}: the ratio is of the machines as well")
    alone = len(first.rows) + len(second.rows) - 2 * both
    if alone:
        said.append(f"{alone} timings have no counterpart in the other")
    return said
