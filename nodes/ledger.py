"""The ledger: every source that a run tried, at the gates or on the way there, so that nobody tries one twice for nothing.

A record a source in the store, brought up to date by whoever measures it. What requests show are snapshots by content, named
by the attempts: a request must read the same when a process that was killed asks it again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from pydantic import Field

from harness.records import Build, Cache, Comparison, Interval, Outcome, Timing, Verdict
from harness.store import Store, digest
from harness.timing import comparison
from kernels.spec import Device, Frozen
from nodes.policies.trim import trim

if TYPE_CHECKING:
    from nodes.roles import Attempt

KIND, PAIRS = "trial", "series"
MOST_SERIES = 64
"""Series of samples that are pooled of one pair at one workload."""
NOTHING = ("0", "0 bytes")
"""Figures of a compiler that tell nothing: g++ counts the loops that it vectorised itself, and intrinsics are none of them."""
NOTE_CHARS, REASON_CHARS, RESOURCE_CHARS = 160, 160, 60
MOST_KERNELS, MOST_GAINS = 3, 16


class LedgerGain(Frozen):
    """Speedup over the baseline at one workload in one cache state."""

    workload: str
    """Label."""
    cache: Cache
    speedup: Interval
    samples: int
    time_us: float


class LedgerEntry(Frozen):
    """One source, and what is known of it."""

    candidate: str
    note: str = ""
    """What the source does that is new, in its writer's words."""
    outcome: Outcome | None = None
    checked: bool = False
    """Whether it was run, and not compiled alone."""
    reason: str = ""
    resources: dict[str, str] = Field(default_factory=dict)
    """Kernel -> registers, spills, shared memory, as the compiler said."""
    gains: tuple[LedgerGain, ...] = ()
    official: bool = False
    """Whether they are the verdict's; of short comparisons otherwise."""


class Pooled(Frozen):
    """What all series say that were ever taken of two sources at one workload in one cache state."""

    speedup: Interval
    """The other source's time / this one's."""
    comparison: Comparison
    samples: int
    series: int
    needed: int
    """Series more that would decide (harness/timing/comparison.py); 0 where it is decided."""


class _Series(Frozen):
    ratios: tuple[tuple[float, ...], ...]


def trial(store: Store, candidate: str) -> LedgerEntry:
    return store.find_record(KIND, candidate, LedgerEntry) or LedgerEntry(candidate=candidate)


def record(store: Store, candidate: str, **known: object) -> LedgerEntry:
    """What is known of a source now; fields that are not named stay."""
    update = {name: value for name, value in known.items() if value or name == "reason"}
    found = trial(store, candidate).model_copy(update=update)
    store.keep(KIND, candidate, found)
    return found


def record_build(store: Store, build: Build, note: str = "") -> None:
    kernels = list(build.resources.items())[:MOST_KERNELS]
    record(
        store, build.candidate, note=" ".join(note.split())[:NOTE_CHARS],
        outcome=Outcome.PASSED if build.ok else Outcome.COMPILE_ERROR,
        reason="" if build.ok else _first_line(build.log),
        resources={name[:RESOURCE_CHARS]: said[:RESOURCE_CHARS] for name, said in kernels},
    )  # fmt: skip


def record_verdict(store: Store, verdict: Verdict) -> None:
    """With the verdict's times, where it has some."""
    if verdict.build is not None:
        record_build(store, verdict.build)
    update: dict[str, object] = {"outcome": verdict.outcome, "checked": True, "reason": _first_line(verdict.reason)}
    if verdict.timings:
        gains = tuple(gain(timing) for timing in verdict.timings[:MOST_GAINS])
        update |= {"gains": gains, "official": True}
    record(store, verdict.candidate, **update)


def record_times(store: Store, candidate: str, timings: Sequence[Timing]) -> None:
    """With a short comparison's times beside those of other workloads; a verdict's stay."""
    known = trial(store, candidate)
    if known.official:
        return
    gains = {(one.workload, one.cache): one for one in known.gains}
    gains |= {(one.workload, one.cache): one for one in map(gain, timings)}
    record(store, candidate, gains=tuple(gains.values())[:MOST_GAINS])


def gain(timing: Timing) -> LedgerGain:
    rounded = Interval(**{name: round(value, 4) for name, value in timing.speedup.model_dump().items()})
    return LedgerGain(
        workload=timing.workload.label,
        cache=timing.cache,
        speedup=rounded,
        samples=timing.samples,
        time_us=round(timing.time_us, 3),
    )


def pool_series(
    store: Store, mine: str, other: str, timing: Timing, series: Sequence[Sequence[float]], on: Device
) -> Pooled:
    """All series of that pair at the timing's workload and state, `series` (the other's time / mine) among them."""
    known = _pooled(store, mine, other, timing, series)
    margin = comparison.MARGIN[on]
    return Pooled(
        speedup=comparison.series_interval(known),
        comparison=comparison.compare_series(known, margin),
        samples=sum(map(len, known)),
        series=len(known),
        needed=comparison.series_needed(known, margin),
    )


def _pooled(
    store: Store, mine: str, other: str, timing: Timing, series: Sequence[Sequence[float]]
) -> list[tuple[float, ...]]:
    first, second = sorted((mine, other))

    def turned(several: Sequence[Sequence[float]]) -> tuple[tuple[float, ...], ...]:
        return tuple(tuple(ratio if first == mine else 1 / ratio for ratio in one) for one in several)

    key = digest(PAIRS, first, second, timing.workload.label, timing.cache)
    kept = store.find_record(PAIRS, key, _Series)
    every = ((kept.ratios if kept else ()) + turned(series))[-MOST_SERIES:]
    store.keep(PAIRS, key, _Series(ratios=every))
    return list(turned(every))


def snapshot(store: Store, candidates: Iterable[str]) -> str:
    """The name in the store of what is known of those sources now."""
    found = [trial(store, name).model_dump(mode="json") for name in dict.fromkeys(candidates) if name]
    return store.put(json.dumps(found, sort_keys=True)) if found else ""


def read(store: Store, names: Iterable[str]) -> tuple[LedgerEntry, ...]:
    """The sources of those snapshots, each as the last of them knows it, in the order of their first."""
    found: dict[str, LedgerEntry] = {}
    for name in filter(None, names):
        for one in json.loads(store.get(name)):
            known = LedgerEntry.model_validate(one)
            found[known.candidate] = known
    return tuple(found.values())


def every(store: Store) -> tuple[LedgerEntry, ...]:
    """All sources of this store, as they are known now, those that were written first first."""
    folder = store.folder / "records" / KIND
    paths = (
        sorted(folder.glob("*.json"), key=lambda path: (store.folder / "sources" / path.stem).stat().st_mtime)
        if folder.is_dir()
        else []
    )
    return tuple(trial(store, path.stem) for path in paths)


def rows(
    trials: Sequence[LedgerEntry],
    attempts: Sequence[Attempt],
    most: int | None = None,
    numbered: Sequence[tuple[str, Cache]] = (),
) -> list[str]:
    """A line a source, the last `most`: its name, what is new in it, how it ended, its gains, why it was not kept.

    `numbered`: (label, cache) of the timings that have a number already where the rows are shown.
    """
    tried = {attempt.candidate: attempt for attempt in attempts if attempt.candidate}
    shown = trials if most is None else trials[-most:]
    known = [(gain.workload, gain.cache) for trial in shown for gain in trial.gains]
    places = list(dict.fromkeys([*numbered, *known])) if known else []
    said = (
        ["timings by number: " + "; ".join(f"{n} = {w}, {c}" for n, (w, c) in enumerate(places, 1))] if places else []
    )
    if len(shown) < len(trials):
        said.append(f"({len(trials) - len(shown)} earlier sources are left out)")
    for one in shown:
        attempt = tried.get(one.candidate)
        parts = [f"[{one.candidate[:12]}] {f'round {attempt.round}' if attempt else 'on the way'}"]
        parts.append(one.note or (attempt.plan.title if attempt else ""))
        parts.append("compiles" if one.outcome is Outcome.PASSED and not one.checked else str(one.outcome or ""))
        parts += [f"{kernel}: {resources}" for kernel, resources in one.resources.items() if resources not in NOTHING]
        if one.gains:
            gains = (f"{places.index((gain.workload, gain.cache)) + 1}: {_said(gain)}" for gain in one.gains)
            parts.append(f"x baseline{'' if one.official else ', unofficial'}: {'; '.join(gains)}")
        if attempt is not None:
            parts.append("kept" if attempt.accepted else f"not kept: {_first_line(attempt.reason)}")
        elif one.reason:
            parts.append(one.reason)
        said.append(" | ".join(filter(None, parts)))
    return said


def _said(gain: LedgerGain) -> str:
    return f"{gain.speedup.median:.3f} [{gain.speedup.low:.3f}, {gain.speedup.high:.3f}]"


def _first_line(text: str) -> str:
    lines = trim(text).splitlines()
    return next((" ".join(line.split())[:REASON_CHARS] for line in lines if line.strip()), "")
