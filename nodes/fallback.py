"""Gate: where the winner is slower than the source at rows that packs do not fit, the host takes the source's own launch.

Every form is judged at the sizes that the spec names, and those mostly divide by everything. Before a run ends its winner meets the
source once more, in short contests at rows a little longer (nodes/rewrites/specialize/uneven.py). What it loses there decides for
which sizes both go into one file; that file is checked, timed at the named sizes beside the winner, and at the longer rows beside
the source. It takes the winner's place where it loses nowhere. At the end, because a step that was applied to such a file would
rewrite the source's own kernels, too.
"""

from __future__ import annotations

import math
import time

from langgraph.runtime import Runtime

from harness.evaluate import Evaluator
from harness.judge.quick import Case
from harness.judge.search import CASES, spread_evenly
from harness.records import Comparison, Timing, Verdict
from harness.timing.comparison import MARGIN
from nodes.context import Context
from nodes.rewrites.specialize.multiversion import multiversion
from nodes.rewrites.specialize.uneven import clear_loss, every_uneven, longer, remainders, row_axis, slower
from nodes.rewrites.specialize.version import Version
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.roles import Plan
from nodes.select import attempt_of, slower_than_the_baseline
from nodes.state import Draft, Incumbent, State, Stop
from nodes.subjects import subject_of

PLAN = "fallback"


def fallback(state: State, runtime: Runtime[Context]) -> dict:
    settings, incumbent, context = state["settings"], state["incumbent"], runtime.context
    if incumbent.candidate == settings.source or subject_of(settings).drafted or state.get("stop") is Stop.SECONDS:
        return {}
    began, evaluator = time.monotonic(), context.evaluator
    try:
        found = beside_the_source(evaluator, incumbent.verdict, settings.source)
    except Unsupported as refusal:
        context.say("fallback", f"the source's own launch stays out: {refusal}")
        return {}
    if found is None:
        return {}
    candidate, version, cases = found
    where = version.said(evaluator.spec)
    plan = Plan(
        id=PLAN, title=f"the source's own launch for {where}", steps=(f"multiversion {settings.source[:8]}: {where}",),
        base=incumbent.candidate, version=version,
    )  # fmt: skip
    context.say("fallback", f"slower than the source for {where}: both in one file")
    verdict, reason = _judged(evaluator, candidate, cases, incumbent, settings.source)
    draft = Draft(plan=plan, candidate=candidate, verdict=verdict, seconds=time.monotonic() - began)
    attempt = attempt_of(draft, state["round"], None if reason else draft, incumbent).model_copy(
        update={"reason": reason}
    )
    context.say("fallback", reason or "nowhere slower than the winner, nor than the source where it takes it")
    update = {"attempts": [attempt]}
    if reason:
        return update
    return {**update, "incumbent": Incumbent(candidate=candidate, verdict=verdict, round=state["round"])}


def beside_the_source(evaluator: Evaluator, winner: Verdict, source: str) -> tuple[str, Version, list[Case]] | None:
    """The file with both forms, for what it takes the source's, and the cases of that; None where nothing is lost.

    `winner` is measured, `source` the hash of what it was measured beside. Raises Unsupported where they do not go together.
    """
    spec, suite = evaluator.spec, [workload for workload in evaluator.suite() if workload.timed]
    axis = row_axis(spec, suite[-1])
    if axis is None:
        return None
    text, other = (Source(evaluator.store.get(name), evaluator.device) for name in (winner.candidate, source))
    multiversion(text, other, spec, every_uneven(spec, axis, 1))  # what cannot be written need not be timed
    fitting = [one for one in remainders(spec) if evaluator.admits(longer(suite[0], axis, one))]
    timings, version = list(winner.timings), None
    for remainder in dict.fromkeys([*fitting[:1], *fitting[-1:]]):  # what just misses a pack only where the first loses
        workloads = [longer(workload, axis, remainder) for workload in suite]
        cases = [(workload, cache) for workload in workloads for cache in evaluator.caches(workload)]
        timings += _contended(evaluator, winner.candidate, source, spread_evenly(cases, CASES[evaluator.device]))
        version = slower(spec, axis, timings, MARGIN[evaluator.device])
        if version is None:
            return None
    if version is None:
        return None
    version = version.model_copy(update={"candidate": source})
    taken = [(one.workload, one.cache) for one in timings if version.takes(spec, one.workload)]
    return evaluator.store.put(multiversion(text, other, spec, version)), version, taken


def _judged(
    evaluator: Evaluator, candidate: str, cases: list[Case], incumbent: Incumbent, source: str
) -> tuple[Verdict, str]:
    """The verdict on both forms in one file, and why it does not take the winner's place, "" where it does."""
    verdict = evaluator.verify(evaluator.build(candidate))
    if not verdict.passed:
        return verdict, verdict.reason
    verdict = evaluator.measure(verdict, baseline=source, incumbent=incumbent.candidate)
    if not verdict.passed or verdict.suite_incumbent is None:
        return verdict, verdict.reason or "passed, but was not measured"
    if verdict.suite_incumbent.comparison is Comparison.SLOWER:
        return verdict, f"slower than the winner: {verdict.suite_incumbent.speedup.median:.3f}x"
    if reason := slower_than_the_baseline(verdict, incumbent):
        return verdict, reason
    try:
        loss = clear_loss(_contended(evaluator, candidate, source, cases), MARGIN[evaluator.device])
    except Unsupported as fault:
        return verdict, str(fault)
    return (
        verdict,
        f"slower than the source with its own launch, too: {math.exp(-loss / len(cases)):.3f}x" if loss else "",
    )


def _contended(evaluator: Evaluator, candidate: str, source: str, cases: list[Case]) -> tuple[Timing, ...]:
    """Beside the source. Raises Unsupported where one of them fails there: no spec says that it must not."""
    try:
        quick = evaluator.compare_briefly(evaluator.build(candidate), {"baseline": source}, cases)
    except RuntimeError as fault:
        raise Unsupported(str(fault)) from None
    if not quick.timings:
        failed = f"{quick.outcome}, " if quick.outcome else ""
        raise Unsupported(f"at rows that no workload has: {failed}{quick.reason}")
    return quick.timings
