"""Gate: the winner meets compute-sanitizer, many more draws, other company, and the workloads that no agent has seen."""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.evaluate import measure_against
from harness.records import Comparison, Verdict
from nodes.context import Context
from nodes.fallback import PLAN
from nodes.memory import learn
from nodes.state import State, is_problem

WITHDRAWN = "it did not hold when its run ended: wrong or slower where no agent looks"
"""All that later runs are told: what the held-out workloads are must not get about."""


def held_out(state: State, runtime: Runtime[Context]) -> dict:
    """Disqualifies a winner that fails at either, or is clearly slower than the baseline over the workloads.

    A problem counts by a candidate that is right even where none is faster than eager torch: the fastest of those.
    """
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
            learn(runtime.store, state, context.kernel.spec, winner, withdrawn=WITHDRAWN)
        return update
    answer = _fastest_right(state) if is_problem(settings) else ""
    if not answer:
        return {}
    verdict = _met(answer, settings.source, context)
    return {"answer": _compared(verdict, state, context) if verdict.passed else verdict}


def _judged(state: State, context: Context) -> dict:
    evaluator, settings, incumbent = context.evaluator, state["settings"], state["incumbent"]
    watched = evaluator.draw_again(evaluator.sanitize(incumbent.verdict), baseline=settings.source)
    if watched.passed and not is_problem(settings):  # a module's neighbours are other modules' kernels
        watched = evaluator.measure_other_contexts(watched, baseline=settings.source)
    update: dict = {"incumbent": incumbent.model_copy(update={"verdict": watched})} if watched.passed else {}
    if not watched.passed:
        return {"disqualified": f"{watched.outcome}: {watched.reason}", **_answer(state, watched)}
    if evaluator.suite(held_out=True):
        verdict = evaluator.verify(evaluator.build(incumbent.candidate), held_out=True)
        if verdict.passed:
            verdict = evaluator.measure(verdict, baseline=settings.source, held_out=True)
        update["held_out"] = verdict
        if not verdict.passed:
            update["disqualified"] = f"on held-out workloads: {verdict.outcome}: {verdict.reason}"
            return {**update, **_answer(state, verdict)}
        if verdict.suite is not None and verdict.suite.comparison is Comparison.SLOWER:
            said = f"slower than the baseline on held-out workloads: {verdict.suite.speedup.median:.3f}x"
            update["disqualified"] = said
    if is_problem(settings):
        compared = _compared(watched, state, context)
        if not compared.passed:  # found out while it was timed against torch.compile
            return {**update, "disqualified": f"{compared.outcome}: {compared.reason}", "answer": compared}
        update |= {"incumbent": incumbent.model_copy(update={"verdict": compared}), "answer": compared}
        suite = compared.suite
        if suite is not None and suite.comparison is not Comparison.FASTER:
            said = f"right, but not clearly faster than eager torch: {suite.comparison}, {suite.speedup.median:.3f}x"
            update.setdefault("disqualified", said)
    return update


def _answer(state: State, verdict: Verdict) -> dict:
    return {"answer": verdict} if is_problem(state["settings"]) else {}


def _compared(verdict: Verdict, state: State, context: Context) -> Verdict:
    """With its times against torch.compile, where they were asked for."""
    for mode in state["settings"].compare:
        verdict = measure_against(context.evaluator, verdict, mode)
    return verdict


def _fastest_right(state: State) -> str:
    right = [attempt for attempt in state.get("attempts", ()) if attempt.speedup is not None]
    return max(right, key=lambda attempt: attempt.speedup or 0.0).candidate if right else ""


def _met(candidate: str, baseline: str, context: Context) -> Verdict:
    """The verdict on a candidate that is no winner: it passed and was timed before, and meets what no agent has seen."""
    evaluator = context.evaluator
    build = evaluator.build(candidate)
    if evaluator.suite(held_out=True):
        unseen = evaluator.verify(build, held_out=True)
        if not unseen.passed:
            return unseen
    return evaluator.measure(evaluator.verify(build), baseline=baseline)
