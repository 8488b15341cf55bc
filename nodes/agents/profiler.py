"""Agent: what bounds the incumbent, with the numbers. Begins a round."""

from __future__ import annotations

from langgraph.runtime import Runtime

from harness.store import digest
from nodes.context import Context
from nodes.options import Role
from nodes.policies import answers
from nodes.roles import Agent, Finding, ProfilerRequest, Prompt
from nodes.state import State


def _prompt(request: ProfilerRequest) -> Prompt[Finding]:
    measured = answers.compute_finding(request)
    return Prompt(
        step="finding",
        facts={"source": digest(request.source), "round": str(request.round or "")},
        variables={
            "source": request.source,
            "timings": request.timings,
            "probes": request.probes,
            "measured": measured,
        },
        read=lambda text: answers.finding(text, request),
        form=answers.FindingDraft,
        otherwise="the finding holds the measured figures only",
    )


READERS: tuple[Role, ...] = ("profiler", "planner", "coder")
"""Roles whose models read what a profiler says."""
AGENT = Agent(
    nodes={"profiler": "profiling the incumbent"},
    without=lambda request, _: answers.compute_finding(request),
    prompt=_prompt,
)


def profiler(state: State, runtime: Runtime[Context]) -> dict:
    round_ = state["round"] + 1
    begun = {"round": round_, "drafts": []}
    context, incumbent = runtime.context, state["incumbent"]
    if "finding" in state and state["finding"].of == incumbent.candidate:
        return begun
    # Once for the run: what is measured again after a kill would be other words, and an answer paid for twice.
    known = state.get("device")
    device = known if known is not None and known.compute else context.evaluator.measure_facts()
    # The rules plan by timings alone: their first candidate does not wait for a profiler, which takes ten seconds on a GPU and more.
    # A client never does: it is shown no finding, and has `profile`.
    readers = {context.policies[one].name for one in READERS}
    calls = "client" not in readers and (round_ > 1 or readers != {"rules"})
    probes = context.evaluator.probes(context.evaluator.build(incumbent.candidate), calls=calls)
    finding = context.policies["profiler"].answer(
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
