"""Gate: the winner meets compute-sanitizer, many more draws, other company, and the workloads that no agent has seen."""

from __future__ import annotations

from functools import partial

from langgraph.runtime import Runtime

from harness.records import Comparison
from nodes.context import Context
from nodes.fallback import PLAN
from nodes.memory import learn
from nodes.state import State
from nodes.subjects import subject_of

WITHDRAWN = "it did not hold when its run ended: wrong or slower where no agent looks"
"""All that later runs are told: what the held-out workloads are must not get about."""


def held_out(state: State, runtime: Runtime[Context]) -> dict:
    """Disqualifies a winner that fails at either, or is clearly slower than the baseline over the workloads."""
    context, settings, incumbent = runtime.context, state["settings"], state["incumbent"]
    if incumbent.candidate != settings.source:
        update = _judged(state, context)
        if "disqualified" in update and not ("answer" in update and update["answer"].passed):
            attempts = [one for one in state.get("attempts", ()) if one.accepted]
            of = {
                one.plan.base if one.plan.id == PLAN else one.candidate
                for one in attempts
                if one.candidate == incumbent.candidate
            }
            winner = [one for one in attempts if one.candidate in of]  # with the source's launch beside it or without
            learn(runtime.store, state, context.kernel.spec, winner, WITHDRAWN, context.reference())
        return update
    return subject_of(settings).conclude_without_winner(state, context)


def _judged(state: State, context: Context) -> dict:
    evaluator, settings, incumbent = context.evaluator, state["settings"], state["incumbent"]
    subject = subject_of(settings)
    drawn = partial(evaluator.draw_again, baseline=settings.source)
    watched = evaluator.sanitize_beside(incumbent.verdict, drawn)
    if watched.passed:
        watched = subject.look_elsewhere(watched, settings, context)
    update: dict = {"incumbent": incumbent.model_copy(update={"verdict": watched})} if watched.passed else {}
    if not watched.passed:
        return {"disqualified": f"{watched.outcome}: {watched.reason}", **subject.answer(watched)}
    if evaluator.suite(held_out=True):
        verdict = evaluator.verify(evaluator.build(incumbent.candidate), held_out=True)
        if verdict.passed:
            verdict = evaluator.measure(verdict, baseline=settings.source, held_out=True)
        update["held_out"] = verdict
        if not verdict.passed:
            update["disqualified"] = f"on held-out workloads: {verdict.outcome}: {verdict.reason}"
            return {**update, **subject.answer(verdict)}
        if verdict.suite is not None and verdict.suite.comparison is Comparison.SLOWER:
            said = f"slower than the baseline on held-out workloads: {verdict.suite.speedup.median:.3f}x"
            update["disqualified"] = said
    return subject.conclude(update, watched, state, context)
