"""Gate: the baseline must pass and be timed before anything is compared with it; a problem's draft is compared first.

What earlier runs learned is recalled here, once."""

from __future__ import annotations

from langgraph.runtime import Runtime

from nodes.context import Context
from nodes.memory import recall
from nodes.roles import Attempt
from nodes.select import attempt_of
from nodes.state import Incumbent, State, Stop
from nodes.stops import next_stop


def baseline(state: State, runtime: Runtime[Context]) -> dict:
    evaluator, settings = runtime.context.evaluator, state["settings"]
    verdict = evaluator.verify(evaluator.build(settings.source))
    if verdict.passed:
        verdict = evaluator.measure(verdict, baseline=settings.source)
    if not verdict.passed:
        return {"baseline": verdict, "stop": Stop.BASELINE}
    update = State(
        baseline=verdict, incumbent=Incumbent(candidate=settings.source, verdict=verdict), round=0, stale_rounds=0,
        memory=recall(runtime.store, state, runtime.context.kernel.spec, runtime.context.store),
    )  # fmt: skip
    if "draft" in state:
        update |= _drafted(state, update["incumbent"], runtime.context)
    stop = next_stop({**state, **update})
    return dict(update) if stop is None else {**update, "stop": stop}


def _drafted(state: State, eager: Incumbent, context: Context) -> State:
    """The draft as the attempt of round 0. Where it passed it is what the rounds start from, faster than eager or not."""
    draft = state["draft"]
    if draft.verdict is not None and draft.verdict.passed:
        timed = context.evaluator.measure(draft.verdict, baseline=eager.candidate)
        draft = draft.model_copy(update={"verdict": timed})
    winner = draft if draft.verdict is not None and draft.verdict.passed else None
    attempts: list[Attempt] = [attempt_of(draft, 0, winner, eager)]
    if winner is None or winner.verdict is None:
        return State(attempts=attempts, draft=draft)
    return State(
        attempts=attempts, draft=draft, incumbent=Incumbent(candidate=winner.candidate, verdict=winner.verdict)
    )
