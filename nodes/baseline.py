"""Gate: the baseline must pass and be timed before anything is compared with it."""

from __future__ import annotations

from langgraph.runtime import Runtime

from nodes.context import Context
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
        baseline=verdict, incumbent=Incumbent(candidate=settings.source, verdict=verdict), round=0, stale_rounds=0
    )
    stop = next_stop({**state, **update})
    return dict(update) if stop is None else {**update, "stop": stop}
