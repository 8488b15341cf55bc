"""When a run has done enough: pure functions of the state."""

from __future__ import annotations

import re

from harness.records import Comparison, Verdict, sol_by_cache
from nodes.options import StopRule
from nodes.roles import Standing
from nodes.state import Spent, State, Stop


def light_fraction(verdict: Verdict) -> float | None:
    """Geometric mean over the timed workloads of speed of light / time, of the cache state where it is smaller.

    None where no bound is known. A kernel at the limit of memory may have half of its time left to gain with a hot
    last-level cache, and one whose cold timings drown in latency may be at the limit with a hot one.
    """
    return min(sol_by_cache(verdict.timings).values(), default=None)


def budget_stop(state: State) -> Stop | None:
    """The budget that is spent, before another round or repair begins."""
    budget, spent = state["settings"].budget, state.get("spent")
    if spent is None:
        return None
    total = spent.total
    if budget.seconds is not None and spent.seconds >= budget.seconds:
        return Stop.SECONDS
    if budget.fallback == "rules":
        return None  # the chat policy stops asking by itself and the rules answer from then on
    if budget.tokens is not None and total.tokens_in + total.tokens_out >= budget.tokens:
        return Stop.TOKENS
    if budget.money_usd is not None and total.money_usd is not None and total.money_usd >= budget.money_usd:
        return Stop.MONEY
    return None


def next_stop(state: State) -> Stop | None:
    """Why no further round begins, or None. What was reached comes before what ran out."""
    rule = state["settings"].stop
    reached = light_fraction(state["incumbent"].verdict)
    if reached is not None and reached >= rule.light_fraction:
        return Stop.LIGHT
    if state["round"] >= rule.rounds:
        return Stop.ROUNDS
    if state["stale_rounds"] >= _patience(rule):
        return Stop.PLATEAU
    if rule.enough_seconds is not None and state["round"] and _is_faster(state):
        spent = state.get("spent", Spent()).seconds
        if spent >= rule.enough_seconds:
            return Stop.ENOUGH
    return budget_stop(state)


def _is_faster(state: State) -> bool:
    """Whether something was found that is clearly faster than what the run began with."""
    suite = state["incumbent"].verdict.suite
    return state["incumbent"].round > 0 and suite is not None and suite.comparison is Comparison.FASTER


def _patience(rule: StopRule) -> int:
    return max(3, rule.rounds // 2) if rule.patience is None else rule.patience


MOST_TOLERANCES = 4


def standing(state: State) -> Standing:
    """What agents are told of the run's limits and of what right means; the same as long as no node ends."""
    settings, spent, baseline = state["settings"], state.get("spent", Spent()), state.get("baseline")
    budget, total = settings.budget, spent.total
    checks = [check for check in baseline.checks if check.tolerance] if baseline is not None else []
    timed = {timing.workload.label for timing in baseline.timings} if baseline is not None else set()
    # A check of a later call has its workload's tolerance; what is timed is told first.
    shown = [check for check in checks if check.workload in timed and not re.search(r"after \d+ calls", check.name)]
    first = shown[0].name if shown else ""
    shown = sorted((check for check in shown if check.name == first), key=lambda check: check.workload)
    said = dict.fromkeys(f"{check.workload}: {check.tolerance}" for check in shown)
    return Standing(
        rounds=settings.stop.rounds,
        stale_rounds=state.get("stale_rounds", 0),
        patience=_patience(settings.stop),
        seconds_left=None if budget.seconds is None else round(max(0.0, budget.seconds - spent.seconds)),
        tokens_left=None if budget.tokens is None else max(0, budget.tokens - total.tokens_in - total.tokens_out),
        money_usd_left=None
        if budget.money_usd is None or total.money_usd is None
        else max(0.0, budget.money_usd - total.money_usd),
        tolerances=tuple(said)[:MOST_TOLERANCES],
        worst_error=max((check.error for check in checks), default=None),
    )
