"""What a tool found, in words for a model: bounded, and all that another program wrote between marks with its own hash.

Outside of the marks stand only numbers and words of ours, so that a compiler's message, a kernel's name or a counter's can
say what they like and remain data.
"""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from harness.judge.quick import Quick, Spread
from harness.records import Build, Check, DeviceFacts, Interval, Outcome, Timing, Verdict
from harness.timing.comparison import MOST_SERIES
from harness.timing.load import DISTURBED
from nodes.ledger import NOTE_CHARS, NOTHING, Pooled
from nodes.policies.render import SHORT, data, percent
from nodes.policies.trim import printable, trim
from nodes.roles import Attempt

LOG_CHARS = 4000
UNDECIDED = "the tools' time that is left; the verdict after `submit` takes more samples, in fresh processes, beside the best so far and the baseline."
SUBMITTED = "[{}] is built, checked and timed officially now"
READING_CHARS = 300
READINGS = 60
SOURCE_LINES = 400
LISTING_LINES = 160
LINE_CHARS = 300
REGISTERS_A_MULTIPROCESSOR = 65_536
THREADS_A_MULTIPROCESSOR = 2048
_HEADER = re.compile(r"/usr/|\S*/lib/gcc/|\S*/cuda[^:]*/include/")
"""A line about the compiler's own headers, such as GCC's of AVX-512: the candidate cannot mend them."""
_ARGUMENTS = re.compile(r"<[^<>]*>")
_WARNING = re.compile(r"warning|performance loss", re.IGNORECASE)


def describe_build(build: Build, facts: DeviceFacts, note: str = "") -> str:
    """`note`: what tells it from others that are said beside it."""
    name = build.candidate[:SHORT]
    about = [data(" ".join(note.split())[:NOTE_CHARS], "note")] if note else []
    if not build.ok:
        log = trim(build.log, LOG_CHARS if not note else LOG_CHARS // 4)
        return "\n".join([f"[{name}] COMPILE_ERROR", *about, data(log, "compiler")])
    rows = [f"{kernel}: {said}{_occupancy(said, facts)}" for kernel, said in build.resources.items()]
    if facts.device == "cpu" and not any(said not in NOTHING for said in build.resources.values()):
        rows = ["g++ vectorised no loop by itself; what is written in intrinsics it does not count (`profile` does)"]
    lines = printable(build.log).splitlines()
    warnings = [line for line in lines if _WARNING.search(line) and not _HEADER.match(line)]
    said = [f"[{name}] compiles ({build.seconds:.1f} s).", *about]
    if rows:
        said.append(data(_rows(rows), "what the compiler says of each kernel"))
    if warnings:
        said.append(data(_rows(warnings[:8]), "warnings"))
    return "\n".join(said)


def describe_builds(builds: Sequence[Build], notes: Mapping[str, str], facts: DeviceFacts) -> str:
    """Of several forms of a source: those that compile, a row each, then the others with their errors."""
    built = [build for build in builds if build.ok]
    rows = []
    for build in built:
        figures = [
            f"{kernel}: {said}{_occupancy(said, facts)}"
            for kernel, said in build.resources.items()
            if said not in NOTHING
        ]
        rows.append(
            " | ".join([_one(build.candidate), " ".join(notes[build.candidate].split())[:NOTE_CHARS], *figures])
        )
    said = [f"{len(built)} of {len(builds)} forms compile.", data(_rows(rows), "forms")] if built else []
    said += [describe_build(build, facts, notes[build.candidate]) for build in builds if not build.ok]
    return "\n".join(said)


def _one(candidate: str) -> str:
    return f"[{candidate[:SHORT]}]"


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


def describe_several_checks(
    whole: Verdict, brief: Sequence[Verdict], workload: str, wrong: Sequence[Verdict], left_out: int
) -> str:
    """Of several sources: `whole` has every check, `brief` that workload's alone; `wrong` ones have every check, too, and `left_out` is how
    many forms of these had none."""
    said = [describe_checks(verdict) for verdict in (whole, *wrong)]
    if right := ", ".join(_one(verdict.candidate) for verdict in brief if verdict.passed):
        said.append(f"{right} PASSED at {workload}; the fastest of all has every check before it is taken.")
    if left_out:
        said.append(
            f"{left_out} forms of what is wrong were not checked: `check` one by its name if it differs in what is wrong here."
        )
    return "\n".join([*said, *(describe_checks(verdict) for verdict in brief if not verdict.passed)])


def _check(check: Check) -> str:
    return f"{check.name} at {check.workload}: {check.message or f'error {check.error:.3g} of the tolerance'}"


def describe_times(
    quick: Quick,
    timings: Sequence[Timing],
    pooled: Sequence[Mapping[str, Pooled]],
    sources: Mapping[str, str],
    mine: str,
    incumbent: str,
    left_s: float,
) -> str:
    """What was found of the arm `mine`. `sources`: arm -> hash; `pooled`: of each timing, by the other arm's name, with the series of
    earlier calls; `incumbent`: hash of the best so far; `left_s`: seconds that tools may still take."""
    name = sources[mine][:SHORT]
    if not timings:
        ended = f"{quick.outcome} while it was timed" if quick.outcome else "could not be timed"
        return f"[{name}] {ended}\n{data(trim(quick.reason, LOG_CHARS), 'comparison')}"
    series_s = quick.seconds / max(1, sum(len(series) for found in quick.pairs for series in [*found.values()][:1]))
    arms = {key: _named(key, of, incumbent) for key, of in sources.items() if of != sources[mine]} | {mine: f"[{name}]"}
    cpu = bool(quick.spreads) and all(map(_has_cpu, quick.spreads))
    head = ["source", "median us", "least", "middle half", *(["CPU us", "CPU/time"] if cpu else [])]
    rows = [" | ".join([*head, f"[{name}] is so many times as fast, by samples/series"])]
    for at, timing in enumerate(timings):
        rows.append(_case(timing))
        spreads = quick.spreads[at] if quick.spreads else {}
        for arm in arms:
            parts = [arms[arm], *([_spread(spreads[arm])] if arm in spreads else [])]
            if arm in pooled[at]:
                parts.append(f"{_interval(pooled[at][arm].speedup)} {_decision(pooled[at][arm], series_s, left_s)}")
            if len(parts) > 1:
                rows.append(" | ".join(parts))
        if not spreads:
            rows.append(f"{timing.time_us:.2f} us, {_interval(timing.speedup)} times the baseline: {timing.comparison}")
    said = [f"[{name}] unofficial times", data(_rows(rows), "times")]
    if any(found.needed * series_s > left_s for case in pooled for found in case.values()):
        said.append(f"Not in the time left: more series than fit into the {max(0.0, left_s):.0f} s of {UNDECIDED}")
    if len(arms) > 2 and quick.spreads:
        said.append(data(_rows(_ranks(quick.spreads, arms)), "ranks"))
    if load := max((timing.others or 0.0 for timing in timings), default=0.0):
        waits = cpu and load >= DISTURBED
        more = "; where CPU/time is low a source waited for a core: compare CPU us and least" if waits else ""
        said.append(f"Others took {load:.0%} of the CPU{more}.")
    return "\n".join(said)


def describe_choice(
    arms: Mapping[str, str], best: str, pooled: Sequence[Mapping[str, Pooled]], lead: Mapping[str, float]
) -> str:
    """Which form of a source is taken, how many times as fast as the others by all cases, and beside which that is not decided."""
    open_ = [
        f"[{of[:SHORT]}]" for arm, of in arms.items() if arm != best and any(found[arm].needed for found in pooled)
    ]
    beside = f" (not decided beside {', '.join(open_)})" if open_ else ""
    others = [f"{ratio:.3f} [{arms[arm][:SHORT]}]" for arm, ratio in lead.items()]
    others[0] = others[0].replace(" ", " times as fast as ", 1)
    return (
        f"[{arms[best][:SHORT]}] is the fastest of the {len(arms)} by paired samples: {', '.join(others)} over all of this call's "
        f"timings, each beside the other at the same moment, where ranks take each alone{beside}. Without a name the tools take it now."
    )


def _named(key: str, candidate: str, incumbent: str) -> str:
    return key if key == "baseline" else "best so far" if candidate == incumbent else f"[{candidate[:SHORT]}]"


def _has_cpu(spreads: Mapping[str, Spread]) -> bool:
    return all(spread.cpu_us is not None for spread in spreads.values())


def _case(timing: Timing) -> str:
    return f"{timing.workload.label}, {timing.cache}: {_place(timing)}"


def _spread(spread: Spread) -> str:
    said = f"{_us(spread.median_us)} | {_us(spread.least_us)} | {_us(spread.lower_us)} to {_us(spread.upper_us)}"
    return said if spread.cpu_us is None else f"{said} | {_us(spread.cpu_us)} | {spread.cpu_share:.2f}"


def _us(value: float) -> str:
    return f"{value:.4g}" if value < 1000 else f"{value:.0f}"


def _decision(found: Pooled, series_s: float, left_s: float) -> str:
    taken = f"{found.samples}/{found.series}"
    if not found.needed:
        return f"{found.comparison}, {taken}"
    if found.needed * series_s > left_s:
        return f"undecided, {taken}, not in the time left"
    least = "at least" if found.needed == MOST_SERIES else "about"
    return f"undecided, {taken}, needs {least} {found.needed} further series, {found.needed * series_s:.0f} s"


def _ranks(spreads: Sequence[Mapping[str, Spread]], arms: Mapping[str, str]) -> list[str]:
    """A line a measure: the sources in their order, by the geometric mean over the timings."""

    def ordered(us: Callable[[Spread], float], what: str) -> str:
        means = {arm: statistics.geometric_mean([max(us(here[arm]), 1e-3) for here in spreads]) for arm in arms}
        best = min(means.values())
        order = sorted(means, key=lambda arm: means[arm])
        return f"{what}: " + ", ".join(f"{arms[arm]} {means[arm] / best:.2f}" for arm in order)

    said = [ordered(lambda one: one.median_us, "by the median"), ordered(lambda one: one.least_us, "by the least time")]
    if all(map(_has_cpu, spreads)):
        said.append(ordered(lambda one: one.cpu_us or 0.0, "by CPU time of all threads, also while they wait awake"))
    return said


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
        said.append(f"{percent(timing.light_fraction)} of SOL")
    return ", ".join(said) or "-"


def describe_probes(
    candidate: str, probes: Mapping[str, Mapping[str, str]], intensity: Sequence[str], functions: Iterable[str]
) -> str:
    said = [f"[{candidate[:SHORT]}] profile"]
    for probe, readings in probes.items():
        rows = [f"{key}: {value}"[:READING_CHARS] for key, value in list(readings.items())[:READINGS]]
        said.append(data(_rows(rows), f"probe {probe}"))
    said.append(data(_rows(intensity), "bytes and operations of one call"))
    named = _functions(functions)
    if named:
        said.append(data(_rows(named[:READINGS]), "functions whose listing may be asked for"))
    return "\n".join(said)


def _functions(names: Iterable[str]) -> list[str]:
    """One line for all forms of a template: the first one's name, and how many there are beside it."""
    forms: dict[str, list[str]] = {}
    for name in names:
        plain, before = name, ""
        while before != plain:
            before, plain = plain, _ARGUMENTS.sub("", plain)
        forms.setdefault(plain, []).append(name)
    return [
        first + (f" and {len(more)} of other template arguments" if more else "") for first, *more in forms.values()
    ]


def listing(candidate: str, function: str, instructions: Sequence[str], first: int) -> str:
    shown = instructions[first - 1 : first - 1 + LISTING_LINES]
    last = first - 1 + len(shown)
    head = f"[{candidate[:SHORT]}] instructions {first} to {last} of {len(instructions)}"
    return f"{head}\n{data(_rows([function, *shown]), 'listing')}"


def describe_attempt(a: Attempt) -> str:
    """How a submission ended, to whoever made it."""
    speed = f", {_bounds(a.speedup, a.speedup_low, a.speedup_high)}x the baseline" if a.speedup else ""
    gain = _gain(a, f"{_bounds(a.gain, a.gain_low, a.gain_high)}x the best so far" if a.gain else "")
    passed = a.outcome is Outcome.PASSED
    why = "" if not a.reason else f": {a.reason}" if passed else f"\n{data(a.reason, 'why')}"
    end = "it is the best so far now" if a.accepted else "not kept"
    return f"round {a.round}: {a.outcome}{speed}{gain}; {end}{why}"


def describe_written(a: Attempt) -> str:
    """The source that Astrolabe's compiler wrote, in one line."""
    brief = f", {a.brief_speedup:.3f}x the baseline in a short comparison" if a.brief_speedup else ""
    does = "`read` it, start from it or submit it" if a.outcome is Outcome.PASSED else "`read` it"
    return f"Astrolabe's compiler wrote [{a.candidate[:SHORT]}] ({a.outcome}{brief}): {does} by that name."


def _gain(a: Attempt, said: str) -> str:
    """Over the best source of that moment; its number once where that was the baseline."""
    if not a.gain:
        return ""
    return f", {'which was the best so far' if a.gain == a.speedup else said} ({a.against_incumbent})"


def _bounds(median: float, low: float | None, high: float | None) -> str:
    return f"{median:.3f}" if low is None or high is None else f"{median:.3f} [{low:.3f}, {high:.3f}]"


def describe_attempts(attempts: Iterable[Attempt]) -> str:
    rows = []
    for a in attempts:
        speed = f", {a.speedup:.3f}x the baseline" if a.speedup else ""
        gain = _gain(a, f"{a.gain:.3f}x the best of that moment" if a.gain else "")
        named = f" [{a.candidate[:SHORT]}]" if a.candidate else ""
        end = "became the best so far" if a.accepted else f"not kept: {' '.join(a.reason.split())[:300]}"
        rows.append(f"round {a.round}: {a.plan.title}{named}: {a.outcome}{speed}{gain}; {end}")
    return "\n".join(rows)


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
A pack is as many neighbouring elements as one load brings (`vector` of them), an item one pack of a thread. For each dtype the source has
versions. The host takes the first whose conditions a call fulfils: `vector` divides its sizes, a row has at most `longest` packs, there are fewer than `most_rows` rows (null: any), indices fit 32 bits (narrow). The last
version takes every call. Edits name a parameter as `DTYPE.VERSION.PARAMETER` or `DTYPE.VERSION.KERNEL.PARAMETER`. A kernel has one of
five forms:
- elements: each output by itself. threads of a block; items, packs a thread.
- turned: the same where reads lie along another axis than writes, by tiles in shared memory of `along` elements (of what is written) by `across`.
- rows: reductions along the innermost axis. team, threads of a row (0: a whole block of `threads`); items, packs that a thread keeps in
  registers (0: read again in each pass); held, keep what a later pass would compute again. by_size: the host picks packs a thread, threads and
  blocks of a row (more than one only with clusters) for the size at hand; wanted and split fix packs a thread and blocks of a row, 0: any.
- row_tiles: reductions along an axis whose elements lie apart; a block brings some rows into shared memory. longest must be set.
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
