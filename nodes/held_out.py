"""Gate: the winner meets the workloads that no agent has seen, and compute-sanitizer."""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.of_problems import measure_against
from harness.records import Comparison
from nodes.context import Context
from nodes.state import State


def held_out(state: State, runtime: Runtime[Context]) -> dict:
    """Disqualifies a winner that fails at either, or is clearly slower than the baseline over the workloads."""
    evaluator, settings, incumbent = runtime.context.evaluator, state["settings"], state["incumbent"]
    if incumbent.candidate == settings.source:
        return {}
    watched = evaluator.sanitize(incumbent.verdict)
    for mode in settings.compare:
        watched = measure_against(evaluator, runtime.context.kernel, watched, mode)
    update: dict = {"incumbent": incumbent.model_copy(update={"verdict": watched})} if watched.passed else {}
    if not watched.passed:
        return {"disqualified": f"{watched.outcome}: {watched.reason}"}
    if not _suite(state, runtime.context):
        return update
    verdict = evaluator.verify(evaluator.build(incumbent.candidate), held_out=True)
    if verdict.passed:
        verdict = evaluator.measure(verdict, baseline=settings.source, held_out=True)
    update["held_out"] = verdict
    if not verdict.passed:
        update["disqualified"] = f"on held-out workloads: {verdict.outcome}: {verdict.reason}"
    elif verdict.suite is not None and verdict.suite.comparison is Comparison.SLOWER:
        update["disqualified"] = f"slower than the baseline on held-out workloads: {verdict.suite.speedup.median:.3f}x"
    return update


def _suite(state: State, context: Context) -> bool:
    settings = state["settings"]
    suite = context.kernel.spec.suite(settings.device, held_out=True)
    return any(not settings.dtypes or workload.dtype in settings.dtypes for workload in suite)
