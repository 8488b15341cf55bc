"""Agent: which workloads and input distributions to add to the suite."""

from __future__ import annotations

from contextlib import suppress

from langgraph.runtime import Runtime
from pydantic import ValidationError

from harness.store import digest
from kernels.catalog import KernelError
from kernels.spec import Workload
from nodes.agents.drafter import compiling_ahead, drafting
from nodes.context import Context
from nodes.policies import answers
from nodes.roles import Agent, Prompt, TesterAnswer, TesterRequest
from nodes.state import Settings, State


def _prompt(request: TesterRequest) -> Prompt[TesterAnswer]:
    return Prompt(
        step="tests",
        facts={"source": digest(request.baseline_source)},
        variables={"source": request.baseline_source},
        read=lambda text: answers.tests(text, request),
        form=answers.TestsDraft,
        stage="tests",
        otherwise="the suite stays as it is",
    )


AGENT = Agent(
    nodes={"tester": "testing: looking for workloads to add"},
    without=lambda _, why: TesterAnswer(reasons=f"nothing was added: {why}"),
    prompt=_prompt,
)


def tester(state: State, runtime: Runtime[Context]) -> dict:
    """Keeps the additions that the spec allows, one by one; nothing can be removed or loosened."""
    context = runtime.context

    def ask() -> TesterAnswer:
        request = TesterRequest(
            spec=context.visible_spec(state),
            device=context.evaluator.facts,
            baseline_source=context.store.get(state["settings"].source),
        )
        return context.policies["tester"].answer(request)

    with drafting(state, context):
        answer = ask()
        allowed = _allowed(answer, state["settings"], context)
        # The compiler begins with the sizes that nothing speaks against yet.
        with compiling_ahead(state, context, allowed):
            kept = _passing(allowed, answer, state["settings"].source, context)
    if kept.workloads != allowed.workloads:
        with compiling_ahead(state, context, kept):
            pass
    return {"tests": kept, "device": context.evaluator.facts}


def _passing(allowed: TesterAnswer, answer: TesterAnswer, source: str, context: Context) -> TesterAnswer:
    """Of the sizes that the spec allows, and of the distributions that are proposed, those on which the baseline passes."""
    kept = _with_workloads(allowed, source, context)
    for name, distributions in answer.values.items():
        before, kept = kept, _with(kept, _more_values(kept, name, distributions), source, context)
        if kept is before and len(distributions) > 1:  # one of them is not for this kernel, the others may be
            for distribution in distributions:
                kept = _with(kept, _more_values(kept, name, (distribution,)), source, context)
    return kept


def _allowed(answer: TesterAnswer, settings: Settings, context: Context) -> TesterAnswer:
    """The proposed sizes that the spec allows, and the evaluator with them."""
    evaluator, allowed = context.evaluator, TesterAnswer(reasons=answer.reasons)
    proposed: dict[str, Workload] = {}
    known = {one.label for one in context.kernel.spec.workloads}
    for workload in answer.workloads:
        added = workload.model_copy(update={"held_out": False})
        if settings.dtypes and added.dtype not in settings.dtypes:
            context.say("tester", f"not added: {added.label}: this run is restricted to {', '.join(settings.dtypes)}")
        elif added.label in known or added.label in proposed:
            context.say("tester", f"not added: {added.label} is in the suite already")
        else:
            proposed[added.label] = added
    every = tuple(proposed.values())
    with suppress(ValueError):  # which of them is refused is found out one by one
        if len(every) > 1:  # a cluster answers one question sooner than several
            evaluator.extend(every, allowed.values)
            return allowed.model_copy(update={"workloads": every})
    for added in every:
        more = allowed.model_copy(update={"workloads": (*allowed.workloads, added)})
        try:
            evaluator.extend(more.workloads, more.values)
            allowed = more
        except ValueError as error:
            context.say("tester", f"not added: {_sentence(error)}")
            evaluator.extend(allowed.workloads, allowed.values)
    return allowed


def _with_workloads(allowed: TesterAnswer, source: str, context: Context) -> TesterAnswer:
    """All of them where the baseline passes on all; else each that it passes on, by itself.

    Asked of all together, the answer is the one that the baseline's gate asks for next, and is kept for it.
    """
    if not allowed.workloads or _passes(source, context):
        return allowed
    kept = allowed.model_copy(update={"workloads": ()})
    context.evaluator.extend(kept.workloads, kept.values)
    for added in allowed.workloads:
        more = kept.model_copy(update={"workloads": (*kept.workloads, added)})
        kept = _with(kept, more, source, context, only=added)
    return kept


def _sentence(error: Exception) -> str:
    """Without what pydantic writes around a validator's own words."""
    if isinstance(error, ValidationError):
        return error.errors()[0]["msg"].removeprefix("Value error, ")
    return str(error)


def _passes(source: str, context: Context) -> bool:
    """Whether the baseline passes on all that the evaluator has now."""
    try:
        return context.evaluator.verify(context.evaluator.build(source)).passed
    except KernelError:  # the reference fails at some size: which one is found out one by one
        return False


def _more_values(kept: TesterAnswer, name: str, distributions: tuple[str, ...]) -> TesterAnswer:
    values = {**kept.values, name: (*kept.values.get(name, ()), *distributions)}
    return kept.model_copy(update={"values": values})


def _with(
    kept: TesterAnswer, more: TesterAnswer, source: str, context: Context, *, only: Workload | None = None
) -> TesterAnswer:
    """`more` where the spec allows it and the baseline passes on it, else `kept`; the evaluator is left with that.

    `only`: all that is new is this workload, so the baseline need not pass on the others once more.
    """
    evaluator = context.evaluator
    try:
        evaluator.extend(more.workloads, more.values)
        verdict = evaluator.verify(evaluator.build(source), only=only)
        if verdict.passed:
            return more
        refused = f"the baseline does not pass: {verdict.reason}"
    except (ValueError, KernelError) as error:
        refused = _sentence(error)
    context.say("tester", f"not added: {refused}")
    evaluator.extend(kept.workloads, kept.values)
    return kept
