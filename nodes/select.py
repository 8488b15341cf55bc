"""Gate: turns every draft of the round into one Attempt, and keeps the fastest that is clearly FASTER."""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.records import Comparison, Interval, Suite, Verdict
from nodes.context import Context
from nodes.evidence import evidence, find_latest_timings, trials
from nodes.roles import Attempt
from nodes.state import Draft, Incumbent, State


def select(state: State, runtime: Runtime[Context]) -> dict:
    drafts, round_ = state["drafts"], state["round"]
    fit = [draft for draft in drafts if not unfit(draft, state["incumbent"])]
    winner = max(fit, key=lambda draft: gain_of(draft).speedup.median, default=None)
    update: dict = {
        "attempts": [
            attempt_of(draft, round_, winner, state["incumbent"]).model_copy(
                update={
                    "evidence": evidence(draft, state["settings"], runtime.context.evaluator),
                    "trials": trials(draft, state["settings"], runtime.context.store),
                }
            )
            for draft in drafts
        ],
        "drafts": [],
        "stale_rounds": state["stale_rounds"] + 1,
    }
    if winner is not None and winner.verdict is not None:
        incumbent = Incumbent(candidate=winner.candidate, verdict=winner.verdict, round=round_)
        update |= {"incumbent": incumbent, "stale_rounds": 0}
    elif seen := find_latest_timings(drafts, state["incumbent"], state["settings"]):
        update["incumbent"] = state["incumbent"].model_copy(update={"seen": seen})
    return update


def gain_of(draft: Draft) -> Suite:
    """Against the incumbent; against the baseline while that is the incumbent. Only for drafts that were measured."""
    suite = draft.verdict.suite_incumbent or draft.verdict.suite if draft.verdict else None
    if suite is None:
        raise ValueError(f"plan {draft.plan.id} was not measured")
    return suite


def unfit(draft: Draft, incumbent: Incumbent) -> str:
    """Why the draft does not become the incumbent, "" where it may.

    It may be slower than the baseline only where the incumbent, a problem's draft, is so too.
    """
    if draft.verdict is None:
        return draft.refused or "never evaluated"
    if not draft.verdict.passed:
        return draft.verdict.reason
    if draft.verdict.suite is None:
        return draft.lost or "passed, but was not measured"
    gain = gain_of(draft)
    if gain.comparison is not Comparison.FASTER:
        return f"not clearly faster than the best so far: {gain.comparison}{gain.withheld and f', for {gain.withheld}'}"
    return slower_than_the_baseline(draft.verdict, incumbent)


def slower_than_the_baseline(verdict: Verdict, incumbent: Incumbent) -> str:
    """Where it is worst, "" where nowhere but where the incumbent is slower, too."""
    known = {(t.workload.label, t.cache) for t in incumbent.verdict.timings if t.comparison is Comparison.SLOWER}
    slower = [
        timing
        for timing in verdict.timings
        if timing.comparison is Comparison.SLOWER and (timing.workload.label, timing.cache) not in known
    ]
    if slower:
        worst = min(slower, key=lambda timing: timing.speedup.median)
        return f"slower than the baseline on {worst.workload.label}, {worst.cache}: {worst.speedup.median:.3f}x"
    return ""


def attempt_of(draft: Draft, round_: int, winner: Draft | None, incumbent: Incumbent) -> Attempt:
    verdict, reason = draft.verdict, "" if draft is winner else unfit(draft, incumbent)
    if draft.by_person:
        verdict, reason = None, draft.refused
    elif verdict is not None and verdict.suite is None and draft.refused:
        reason = f"{reason} (no repair: {draft.refused})"
    elif not reason and draft is not winner:
        reason = "another candidate of the round was faster still"
    attempt = Attempt(
        round=round_,
        plan=draft.plan,
        candidate=draft.candidate,
        outcome=verdict.outcome if verdict else "REFUSED" if draft.by_person else "NO_CANDIDATE",
        reason=reason,
        remarks=draft.remarks,
        conversation=draft.conversation,
        repairs=draft.repairs,
        seconds=draft.seconds,
        turns=draft.turns,
        tools=draft.tools,
        tool_seconds=draft.tool_seconds,
        spec_doubt=draft.spec_doubt,
        brief_speedup=draft.brief_speedup,
    )
    if verdict is None or verdict.suite is None:
        return attempt
    return attempt.model_copy(
        update={
            "accepted": draft is winner,
            "speedup": verdict.suite.speedup.median,
            "speedup_low": verdict.suite.speedup.low,
            "speedup_high": verdict.suite.speedup.high,
            "comparison": verdict.suite.comparison,
            "against_incumbent": gain_of(draft).comparison,
            "gain": gain_of(draft).speedup.median,
            "gain_low": gain_of(draft).speedup.low,
            "gain_high": gain_of(draft).speedup.high,
            "over": incumbent.candidate,
            "gains": _gains(verdict),
            "tuned": draft.tuned,
            "tuning": draft.tuning,
        }
    )


def _gains(verdict: Verdict) -> tuple[Interval, ...]:
    """Over the incumbent, one a timing, which while that is the baseline are the speedups; () where some are missing."""
    beside = [timing.against_incumbent if verdict.suite_incumbent else timing.speedup for timing in verdict.timings]
    found = [interval for interval in beside if interval is not None]
    if len(found) < len(beside):
        return ()
    return tuple(Interval(median=round(i.median, 4), low=round(i.low, 4), high=round(i.high, 4)) for i in found)
