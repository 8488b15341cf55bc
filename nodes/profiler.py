"""Agent: what bounds the incumbent, with the numbers. Begins a round."""

from __future__ import annotations

from langgraph.runtime import Runtime

from nodes.context import Context
from nodes.roles import ProfilerRequest
from nodes.state import State


def profiler(state: State, runtime: Runtime[Context]) -> dict:
    round_ = state["round"] + 1
    begun = {"round": round_, "drafts": []}
    context, incumbent = runtime.context, state["incumbent"]
    if "finding" in state and state["finding"].of == incumbent.candidate:
        return begun
    # Once for the run: what is measured again after a kill would be other words, and an answer paid for twice.
    known = state.get("device")
    device = known if known is not None and known.compute else context.evaluator.measure_facts()
    probes = context.evaluator.probes(context.evaluator.build(incumbent.candidate))
    finding = context.policies["profiler"].profiler(
        ProfilerRequest(
            spec=context.visible_spec(state),
            device=device,
            source=context.store.get(incumbent.candidate),
            timings=incumbent.timings,
            probes=probes,
            round=round_,
        )
    )
    found = finding.model_copy(update={"probes": probes, "of": incumbent.candidate})
    return {**begun, "device": device, "finding": found}
