"""The source that Astrolabe's compiler writes, tried before a model is asked for its first change: what it need not write itself, and
what it has to beat, stands in its first request."""

from __future__ import annotations

import math
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
SLOW = "slower than the baseline in a short comparison"
SLOW_AND_LONG = "at the smallest size slower than the baseline, and not timed at others"
ONE_SIZE_S, ALL_S = 4.0, 12.0
"""Seconds of series (upper bounds)."""
LONGEST_CALL_S = 0.05
"""A source that is slower at the smallest size is timed at the largest where a call takes no longer than that, by its bytes: a parallel
region of 30 us may be all that it loses. One that was written as loops over single elements took 0.8 s a call, and its comparison a minute."""
MODELS = ("chat", "client")
"""Policies that may choose it; rules propose it as a plan of their own."""


def try_compiler(state: State, context: Context) -> list[Attempt]:
    """It as an attempt of round 0, built, checked and timed beside the baseline as by the tools; [] where there is none or nobody would read
    of it."""
    settings, reference = state["settings"], context.reference()
    models = all(settings.policy[role] in MODELS for role in ("planner", "coder"))
    if not models or not reference or settings.coder != "tools":
        return []
    context.say("compiler", "trying the source that it writes from the reference")
    source, spec = settings.source, context.visible_spec(state)
    bench = Workbench(
        context.evaluator, context.store, spec, baseline=source, incumbent=source, reference=reference, exact=settings.exact
    )  # fmt: skip
    if not bench.has_compiler():
        return []
    said = _try(bench, context)
    made, timed = said[0], said[-1]
    if not made.candidate or made.outcome is None:
        return []
    gains = [one.gain for one in said[1:] if one.gain]
    known = f", {' and '.join(f'{gain:.2f}x' for gain in gains)} the baseline in short comparisons" if gains else ""
    context.say("compiler", f"its source: {timed.outcome}{known}")
    reason = ledger.trial(context.store, made.candidate).reason
    if gains and timed.gain:
        reason = NOT_SUBMITTED if max(gains) >= 1 else SLOW if len(gains) > 1 else SLOW_AND_LONG
    attempt = Attempt(
        round=0,
        plan=Plan(id=COMPILED_FIRST, title=TITLE, steps=(TITLE,), base=source),
        candidate=made.candidate,
        outcome=timed.outcome or made.outcome,
        reason=reason,
        brief_speedup=timed.gain,
        trials=ledger.snapshot(context.store, [made.candidate]),
        tools=dict(Counter(one.tool for one in said)),
        tool_seconds=round(sum(one.seconds for one in said), 3),
        seconds=sum(one.seconds for one in said),
    )
    return [attempt]


def _try(bench: Workbench, context: Context) -> list[ToolResult]:
    """What the tools said of it: built and checked; timed at the smallest size; then at both, or where it is slower there, at the largest."""
    evaluator = context.evaluator
    said = [bench.do(TryScheduleArguments(note=TITLE, then=("check",)), "")]
    timed = [workload for workload in evaluator.suite() if workload.timed]
    if said[0].outcome is Outcome.PASSED and timed:
        name = said[0].candidate
        smallest, largest = min(timed, key=evaluator.moved_bytes), max(timed, key=evaluator.moved_bytes)
        said.append(bench.do(TimeArguments(candidate=name, seconds=ONE_SIZE_S, workloads=(smallest.label,)), ""))
        call_us = max((one.time_us for one in ledger.trial(context.store, name).gains), default=math.inf)
        expected_s = call_us * 1e-6 * evaluator.moved_bytes(largest) / max(1, evaluator.moved_bytes(smallest))
        if (said[-1].gain or 0) >= 1:
            said.append(bench.do(TimeArguments(candidate=name, seconds=ALL_S), ""))
        elif largest != smallest and expected_s <= LONGEST_CALL_S:
            said.append(bench.do(TimeArguments(candidate=name, seconds=ONE_SIZE_S, workloads=(largest.label,)), ""))
    return said
