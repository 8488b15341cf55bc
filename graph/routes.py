"""Where a run goes next: pure functions of the state. The names they return are the drawn edges."""

from __future__ import annotations

from typing import Literal

from nodes.state import State, Stop
from nodes.stops import budget_stop
from nodes.subjects import subject_of


def after_tester(state: State) -> Literal["drafter", "baseline"]:
    return "drafter" if subject_of(state["settings"]).drafted else "baseline"


def after_baseline(state: State) -> Literal["profiler", "held_out", "__end__"]:
    if state.get("stop") is Stop.BASELINE:
        return "__end__"
    return "held_out" if "stop" in state else "profiler"


def after_planner(state: State) -> Literal["review_plans", "contest"]:
    return "contest" if "stop" in state else "review_plans"


def after_review_plans(state: State) -> Literal["planner", "approve_plans"]:
    return "planner" if any(draft.objection for draft in state["drafts"]) else "approve_plans"


def after_review_candidates(state: State) -> Literal["coder", "approve_candidates"]:
    return "coder" if any(draft.objection for draft in state["drafts"]) else "approve_candidates"


def after_compile(state: State) -> Literal["coder", "verify"]:
    return "coder" if _repairable(state) else "verify"


def after_verify(state: State) -> Literal["coder", "tune", "select"]:
    if _repairable(state):
        return "coder"
    passed = any(draft.verdict is not None and draft.verdict.passed for draft in state["drafts"])
    return "tune" if passed else "select"


def after_contest(state: State) -> Literal["profiler", "fallback"]:
    return "fallback" if "stop" in state else "profiler"


def _repairable(state: State) -> bool:
    """Some draft failed, may be repaired, and there is budget left to do it."""
    repairs = state["settings"].repairs
    return budget_stop(state) is None and any(d.failed and d.awaits_coder(repairs) for d in state["drafts"])
