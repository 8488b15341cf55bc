"""The source that Astrolabe's compiler writes, tried before a model is asked for its first change: what it need not write itself, and
what it has to beat, stands in its first request."""

from __future__ import annotations

from collections import Counter

from harness.records import Outcome
from nodes import ledger
from nodes.context import Context
from nodes.roles import COMPILED_FIRST, Attempt, Plan
from nodes.state import State
from nodes.workbench.arguments import TimeArguments, TryScheduleArguments
from nodes.workbench.bench import Workbench
from nodes.workbench.results import ToolResult

TITLE = "the source that Astrolabe's compiler writes from the reference"
NOT_SUBMITTED = "timed in a short comparison and not submitted: submit it, or start from it, where its gains are good"
SLOW = "at the smallest size slower than the baseline, and not timed at others"
SMALLEST_S, ALL_S = 4.0, 12.0
"""Seconds of series (upper bounds): a source that the compiler could only write as loops over single elements took 0.8 s a call at the large
size, and its comparison a minute."""
MODELS = ("chat", "client")
"""Policies that may choose it; rules propose it as a plan of their own."""


def try_compiler(state: State, context: Context) -> list[Attempt]:
    """It as an attempt of round 0, built, checked and timed beside the baseline as by the tools; [] where there is none or nobody would read
    of it."""
    settings, reference = state["settings"], context.reference()
    models = all(settings.policy[role] in MODELS for role in ("planner", "coder"))
    if not models or not reference or settings.exact or settings.coder != "tools":
        return []
    source, spec = settings.source, context.visible_spec(state)
    bench = Workbench(context.evaluator, context.store, spec, baseline=source, incumbent=source, reference=reference)
    if not bench.has_compiler():
        return []
    said = _try(bench, context)
    made, timed = said[0], said[-1]
    if not made.candidate or made.outcome is None:
        return []
    known = f", {timed.gain:.2f}x the baseline in a short comparison" if timed.gain else ""
    context.say("compiler", f"its source: {timed.outcome}{known}")
    reason = ledger.trial(context.store, made.candidate).reason
    attempt = Attempt(
        round=0,
        plan=Plan(id=COMPILED_FIRST, title=TITLE, steps=(TITLE,), base=source),
        candidate=made.candidate,
        outcome=timed.outcome or made.outcome,
        reason=reason if timed.gain is None else NOT_SUBMITTED if timed.gain >= 1 else SLOW,
        brief_speedup=timed.gain,
        trials=ledger.snapshot(context.store, [made.candidate]),
        tools=dict(Counter(one.tool for one in said)),
        tool_seconds=round(sum(one.seconds for one in said), 3),
        seconds=sum(one.seconds for one in said),
    )
    return [attempt]


def _try(bench: Workbench, context: Context) -> list[ToolResult]:
    """What the tools said of it: built and checked; timed at the smallest size, and where it is not slower there, at the largest, too."""
    evaluator = context.evaluator
    said = [bench.do(TryScheduleArguments(note=TITLE, then=("check",)), "")]
    timed = [workload for workload in evaluator.suite() if workload.timed]
    if said[0].outcome is Outcome.PASSED and timed:
        name, smallest = said[0].candidate, min(timed, key=evaluator.moved_bytes)
        said.append(bench.do(TimeArguments(candidate=name, seconds=SMALLEST_S, workloads=(smallest.label,)), ""))
        if (said[-1].gain or 0) >= 1:
            said.append(bench.do(TimeArguments(candidate=name, seconds=ALL_S), ""))
    return said
