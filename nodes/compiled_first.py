"""The source that Astrolabe's compiler writes, tried before a model is asked for its first change: what it need not write itself, and
what it has to beat, stands in its first request."""

from __future__ import annotations

from nodes import ledger
from nodes.context import Context
from nodes.roles import COMPILED_FIRST, Attempt, Plan
from nodes.state import State
from nodes.workbench.arguments import TryScheduleArguments
from nodes.workbench.bench import Workbench

TITLE = "the source that Astrolabe's compiler writes from the reference"
NOT_SUBMITTED = "timed in a short comparison and not submitted: submit it, or start from it, where its gains are good"
MODELS = ("chat", "client")
"""Policies that may choose it; rules propose it as a plan of their own."""


def try_compiler(state: State, context: Context) -> list[Attempt]:
    """It as an attempt of round 0, built, checked and timed beside the baseline as by the tool `try_schedule`; [] where there is none or
    nobody would read of it."""
    settings, reference = state["settings"], context.reference()
    models = all(settings.policy[role] in MODELS for role in ("planner", "coder"))
    if not models or not reference or settings.exact or settings.coder != "tools":
        return []
    source, spec = settings.source, context.visible_spec(state)
    bench = Workbench(context.evaluator, context.store, spec, baseline=source, incumbent=source, reference=reference)
    if not bench.has_compiler():
        return []
    found = bench.do(TryScheduleArguments(note=TITLE), "")
    if not found.candidate or found.outcome is None:
        return []
    known = ledger.trial(context.store, found.candidate)
    said = f", {found.gain:.2f}x the baseline in a short comparison" if found.gain else ""
    context.say("compiler", f"its source: {found.outcome}{said}")
    attempt = Attempt(
        round=0,
        plan=Plan(id=COMPILED_FIRST, title=TITLE, steps=(TITLE,), base=source),
        candidate=found.candidate,
        outcome=found.outcome,
        reason=NOT_SUBMITTED if found.gain else known.reason,
        brief_speedup=found.gain,
        trials=ledger.snapshot(context.store, [found.candidate]),
        tools={found.tool: 1},
        tool_seconds=round(found.seconds, 3),
        seconds=found.seconds,
    )
    return [attempt]
