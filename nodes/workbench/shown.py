"""What a tool found, in words for a model: bounded, and all that another program wrote between marks with its own hash.

Outside of the marks stand only numbers and words of ours, so that a compiler's message, a kernel's name or a counter's can
say what they like and remain data.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from harness.judge.quick import Quick
from harness.records import Build, Check, DeviceFacts, Interval, Timing, Verdict
from harness.timing import comparison
from harness.timing.load import DISTURBED
from kernels.spec import Device
from nodes.policies.render import SHORT, data
from nodes.policies.trim import printable, trim

LOG_CHARS = 4000
READING_CHARS = 300
READINGS = 60
SOURCE_LINES = 400
LISTING_LINES = 160
LINE_CHARS = 300
REGISTERS_A_MULTIPROCESSOR = 65_536
THREADS_A_MULTIPROCESSOR = 2048
_HEADER = re.compile(r"/usr/|\S*/lib/gcc/|\S*/cuda[^:]*/include/")
"""A line about the compiler's own headers, such as GCC's of AVX-512: the candidate cannot mend them."""
_WARNING = re.compile(r"warning|performance loss", re.IGNORECASE)


def describe_build(build: Build, facts: DeviceFacts) -> str:
    name = build.candidate[:SHORT]
    if not build.ok:
        return f"[{name}] COMPILE_ERROR\n{data(trim(build.log, LOG_CHARS), 'compiler')}"
    rows = [f"{kernel}: {said}{_occupancy(said, facts)}" for kernel, said in build.resources.items()]
    lines = printable(build.log).splitlines()
    warnings = [line for line in lines if _WARNING.search(line) and not _HEADER.match(line)]
    said = [f"[{name}] compiles ({build.seconds:.1f} s)."]
    if rows:
        said.append(data(_rows(rows), "what the compiler says of each kernel"))
    if warnings:
        said.append(data(_rows(warnings[:8]), "warnings"))
    return "\n".join(said)


def _occupancy(said: str, facts: DeviceFacts) -> str:
    """Occupancy by one kernel's line of resources on a GPU: the most threads that its registers let a multiprocessor hold."""
    found = re.search(r"registers=(\d+)", said)
    if facts.device != "cuda" or found is None or not int(found[1]):
        return ""
    warps = REGISTERS_A_MULTIPROCESSOR // (-(-int(found[1]) // 8) * 8 * 32)
    share = min(1.0, 32 * warps / THREADS_A_MULTIPROCESSOR)
    return f", occupancy by registers at most {100 * share:.0f} %"


def describe_checks(verdict: Verdict) -> str:
    name, checks = verdict.candidate[:SHORT], verdict.checks
    if verdict.passed:
        worst = max(checks, key=lambda check: check.error)
        return (
            f"[{name}] PASSED: {len(checks)} checks; the largest error is {worst.error:.3g} of the tolerance "
            f"({worst.workload})."
        )
    failed = [_check(check) for check in checks if not check.passed]
    words = "\n".join(dict.fromkeys([verdict.reason, *failed]))
    passed = f" ({sum(check.passed for check in checks)} checks before it passed)" if checks else ""
    return f"[{name}] {verdict.outcome}{passed}\n{data(trim(words, LOG_CHARS), 'checker')}"


def _check(check: Check) -> str:
    return f"{check.name} at {check.workload}: {check.message or f'error {check.error:.3g} of the tolerance'}"


def describe_times(quick: Quick, timings: Sequence[Timing], candidate: str, against: str, on: Device) -> str:
    """`timings`: with the samples of earlier calls; `against`: hash of the source in the place of the best so far, or ""."""
    name = candidate[:SHORT]
    if not timings:
        ended = f"{quick.outcome} while it was timed" if quick.outcome else "could not be timed"
        return f"[{name}] {ended}\n{data(trim(quick.reason, LOG_CHARS), 'comparison')}"
    said = [f"[{name}] a short comparison, unofficial."]
    other = f"[{against[:SHORT]}]" if against else "best so far"
    rows = [
        f"workload | cache | time_us | baseline_us | x baseline [low, high] | x {other} [low, high] | samples | share of SOL"
    ]
    rows += [_timing(timing, on) for timing in timings]
    said.append(data(_rows(rows), "comparison"))
    if load := max((timing.others or 0.0 for timing in timings), default=0.0):
        more = ": intervals are wider than they need be; more `seconds` narrow them" if load >= DISTURBED else ""
        said.append(f"Other processes took {load:.0%} of this machine's CPU meanwhile{more}.")
    return "\n".join(said)


def _timing(timing: Timing, on: Device) -> str:
    against = timing.against_incumbent
    margin = comparison.MARGIN[on]
    gain = f"{_interval(against)} {comparison.compare(against, margin)}" if against else "-"
    return (
        f"{timing.workload.label} | {timing.cache} | {timing.time_us:.2f} | {timing.baseline_us:.2f} | "
        f"{_interval(timing.speedup)} {timing.comparison} | {gain} | {timing.samples} | {_place(timing)}"
    )


def _interval(interval: Interval) -> str:
    return f"{interval.median:.3f} [{interval.low:.3f}, {interval.high:.3f}]"


def _place(timing: Timing) -> str:
    """Where the time lies under the roof that is known: bytes and operations a second, percent of speed of light."""
    said = []
    if timing.moved_bytes:
        said.append(f"{timing.moved_bytes / timing.time_us * 1e-3:.1f} GB/s")
    if timing.flops:
        said.append(f"{timing.flops / timing.time_us * 1e-3:.1f} GFLOP/s")
    if timing.light_fraction:
        said.append(f"{100 * timing.light_fraction:.0f} % of SOL")
    return ", ".join(said) or "-"


def describe_probes(
    candidate: str, probes: Mapping[str, Mapping[str, str]], intensity: Sequence[str], functions: Iterable[str]
) -> str:
    said = [f"[{candidate[:SHORT]}] profile"]
    for probe, readings in probes.items():
        rows = [f"{key}: {value}"[:READING_CHARS] for key, value in list(readings.items())[:READINGS]]
        said.append(data(_rows(rows), f"probe {probe}"))
    said.append(data(_rows(intensity), "bytes and operations of one call"))
    named = list(functions)
    if named:
        said.append(data(_rows(named[:READINGS]), "functions whose listing may be asked for"))
    return "\n".join(said)


def listing(candidate: str, function: str, instructions: Sequence[str], first: int) -> str:
    shown = instructions[first - 1 : first - 1 + LISTING_LINES]
    last = first - 1 + len(shown)
    head = f"[{candidate[:SHORT]}] instructions {first} to {last} of {len(instructions)}"
    return f"{head}\n{data(_rows([function, *shown]), 'listing')}"


def lines(text: str, name: str, first: int) -> str:
    """A part of a text, by its lines."""
    rows = text.split("\n")
    shown = rows[first - 1 : first - 1 + SOURCE_LINES]
    more = "" if len(shown) == len(rows) else f"lines {first} to {first - 1 + len(shown)} of {len(rows)}\n"
    return f"{more}{data(chr(10).join(shown), name)}"


def intensity(timings: Iterable[tuple[str, int, int]]) -> list[str]:
    """(label, bytes, operations) of each timed workload, as lines."""
    return [
        f"{label}: {moved} bytes" + (f", {flops} FLOP, {flops / moved:.2f} FLOP a byte" if flops else "")
        for label, moved, flops in timings
    ]


def _rows(rows: Iterable[str]) -> str:
    return "\n".join(" ".join(printable(row).split())[:LINE_CHARS] for row in rows)


SCHEDULE = """\
For each dtype the source has versions. The host takes the first whose conditions a call fulfils: `vector` (the elements of a pack)
divides its sizes, a row has at most `longest` packs, there are fewer than `most_rows` rows (null: any), indices fit 32 bits (narrow). The last
version takes every call. Edits name a parameter as `DTYPE.VERSION.PARAMETER` or `DTYPE.VERSION.KERNEL.PARAMETER`. A kernel has one of
three sketches:
- elements: each output by itself. threads of a block; items, packs a thread.
- rows: reductions along the innermost axis. team, threads of a row (0: a whole block of `threads`); items, packs that a thread keeps in
  registers (0: read again in each pass); held, keep what a later pass would compute again. by_size: the host picks packs a thread, threads and
  blocks of a row (more than one only with clusters) for the size at hand; wanted and split fix packs a thread and blocks of a row, 0: any.
- columns: reductions along an outer axis. lanes, packs of columns of a block (in C++ of a tile), 0: by size; split, blocks that share the
  rows, 0: by size; threads; unroll, rows whose loads are in flight.
In C++ only vector, longest, most_rows, lanes and `numbers` matter: PARALLEL_FROM, elements from which OpenMP is used; STREAM, 1 for streaming
stores. On CUDA: pdl, whether a kernel takes part in programmatic launch; numbers.TRIGGER_WHEN, where it triggers: 0 before its wait, 1 after,
2 in the last blocks. few, unit and ragged are the compiler's own: leave them.
A source that try_schedule made leaves no number to the search."""


def schedule(record: dict[str, Any]) -> str:
    """The record as JSON, a version a line, and what its fields mean."""
    rows = [
        f'"{dtype}.{n}": {json.dumps(v)}' for dtype, found in record["versions"].items() for n, v in enumerate(found)
    ]
    rest = {key: value for key, value in record.items() if key != "versions"}
    return f"{SCHEDULE}\n{data(chr(10).join([*rows, json.dumps(rest)]), 'schedule')}"
