"""Gate: the baseline must pass and be timed before anything is compared with it; a problem's draft is compared first.

What earlier runs learned is recalled here, once."""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.judge.comparisons import time_baseline_beside
from nodes.compiled_first import try_compiler
from nodes.context import Context
from nodes.memory import recall
from nodes.roles import Attempt
from nodes.select import attempt_of
from nodes.state import Draft, Incumbent, State, Stop
from nodes.stops import next_stop


def baseline(state: State, runtime: Runtime[Context]) -> dict:
    context, settings = runtime.context, state["settings"]
    evaluator = context.evaluator
    verdict = evaluator.verify(evaluator.build(settings.source))
    draft = _timed(state["draft"], settings.source, context) if verdict.passed and "draft" in state else None
    if draft is not None and draft.verdict is not None and draft.verdict.timings:
        verdict = time_baseline_beside(
            verdict, draft.verdict
        )  # a problem's own Model: it is right by definition, and was timed there
    elif verdict.passed:
        verdict = evaluator.measure(verdict, baseline=settings.source)
    if not verdict.passed:
        return {"baseline": verdict, "stop": Stop.BASELINE}
    update = State(
        baseline=verdict, incumbent=Incumbent(candidate=settings.source, verdict=verdict), round=0, stale_rounds=0,
        memory=recall(runtime.store, state, context.kernel.spec, context.store, context.reference()),
    )  # fmt: skip
    if draft is not None:
        update |= _first(draft, update["incumbent"])
    stop = next_stop({**state, **update})
    if stop is None and (tried := try_compiler(state, context)):
        update["attempts"] = tried
    return dict(update) if stop is None else {**update, "stop": stop}


def _timed(draft: Draft, baseline: str, context: Context) -> Draft:
    """The draft, timed where it passed."""
    if draft.verdict is None or not draft.verdict.passed:
        return draft
    return draft.model_copy(update={"verdict": context.evaluator.measure(draft.verdict, baseline=baseline)})


def _first(draft: Draft, eager: Incumbent) -> State:
    """The draft as the attempt of round 0. Where it passed it is what the rounds start from, faster than eager or not."""
    winner = draft if draft.verdict is not None and draft.verdict.passed else None
    attempts: list[Attempt] = [attempt_of(draft, 0, winner, eager)]
    if winner is None or winner.verdict is None:
        return State(attempts=attempts, draft=draft)
    return State(
        attempts=attempts, draft=draft, incumbent=Incumbent(candidate=winner.candidate, verdict=winner.verdict)
    )
