"""What a round showed beside its verdicts: what each draft was compiled to, and how fast the incumbent was in its contests."""

from __future__ import annotations

from collections.abc import Sequence

from harness.evaluate import Evaluator
from harness.records import Interval, Timing
from harness.store import Store
from harness.timing import comparison
from kernels.spec import Device
from nodes import ledger
from nodes.state import Draft, Incumbent, Settings

MOST_READINGS, MOST_CHARS = 24, 60
"""Readings of one probe, and characters of each, that an attempt keeps: it stays in every checkpoint of its run."""


def evidence(draft: Draft, settings: Settings, evaluator: Evaluator) -> dict[str, dict[str, str]]:
    """Readings of every probe that has some, whatever became of the draft; counters only of one that was timed.

    A spill, or loads that stayed narrow, is why a right candidate is no faster; the next plan should know. The rules read none
    of it, and on a GPU it takes seconds, so it is for models only.
    """
    if rules_only(settings) or draft.build is None or not draft.build.ok:
        return {}
    found = evaluator.probes(draft.build, calls=draft.verdict is not None and bool(draft.verdict.timings))
    return {
        name: {key[:MOST_CHARS]: value[:MOST_CHARS] for key, value in list(readings.items())[:MOST_READINGS]}
        for name, readings in found.items()
        if "unavailable" not in readings
    }


def rules_only(settings: Settings) -> bool:
    return all(settings.policy[role] == "rules" for role in ("planner", "coder"))


def trials(draft: Draft, settings: Settings, store: Store) -> str:
    """The name of what the ledger knows now of the draft's sources, its verdict's times among it; "" for rules, who read none."""
    if rules_only(settings) and not draft.trials:
        return ""
    if draft.verdict is not None and draft.candidate not in ("", settings.source):
        ledger.record_verdict(store, draft.verdict)
    return ledger.snapshot(store, (*draft.trials, draft.candidate))


def find_latest_timings(drafts: Sequence[Draft], incumbent: Incumbent, settings: Settings) -> tuple[Timing, ...]:
    """The incumbent's timings in the last contest of these drafts; () where it was in none."""
    contests = [draft.verdict.timings for draft in drafts if draft.verdict is not None and draft.verdict.timings]
    if not contests:
        return ()
    if incumbent.candidate == settings.source:
        even = Interval(median=1, low=1, high=1)
        return tuple(_as_seen(timing, timing.baseline_us, even, settings.device) for timing in contests[-1])
    return tuple(
        _as_seen(timing, timing.incumbent_us, timing.incumbent_speedup, settings.device)
        for timing in contests[-1]
        if timing.incumbent_us is not None and timing.incumbent_speedup is not None
    )


def _as_seen(timing: Timing, time_us: float, speedup: Interval, on: Device) -> Timing:
    return timing.model_copy(
        update={
            "time_us": time_us,
            "speedup": speedup,
            "comparison": comparison.compare(speedup, comparison.MARGIN[on]),
            "against_incumbent": None,
            "incumbent_us": None,
            "incumbent_speedup": None,
        }
    )
