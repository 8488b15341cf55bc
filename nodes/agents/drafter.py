"""Agent: the first candidate of a problem, built and checked like any; bounded repairs."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from langgraph.runtime import Runtime

from harness.evaluate import begin_building
from harness.store import digest
from nodes.compiling import Compilation
from nodes.context import Context
from nodes.drafting import draft as draft_by_rules
from nodes.drafts import failure
from nodes.policies import answers
from nodes.roles import Agent, DraftAnswer, DraftRequest, Plan, Prompt, TesterAnswer
from nodes.state import Draft, Settings, State
from nodes.subjects import subject_of

PLAN = "draft"
SLOW_S = 10.0
SLOW = (
    "the module takes long to draft: it is followed operator by operator, a loop step by step; fewer steps or layers in get_inputs and "
    "get_init_inputs are drafted sooner, and after a minute of work it stays with torch"
)
BY_RULES = ("tester", "planner", "coder")
"""Roles for which the rules must answer so that the first plan is known from the start."""


def _prompt(request: DraftRequest) -> Prompt[DraftAnswer]:
    def read(text: str) -> DraftAnswer:
        source, notes = answers.code(text, request.source)
        return DraftAnswer(source=source, notes=(notes,) if notes else ())

    return Prompt(
        step=f"draft {request.repair}",
        facts={"source": digest(request.source or request.problem)},
        variables={"problem": request.problem, "source": request.source, "failure": request.failure},
        read=read,
        base=request.source,
        stage="draft",
    )


AGENT = Agent(
    nodes={"drafter": "drafting the module as kernels"},
    without=lambda _, why: DraftAnswer(reason=why),
    prompt=_prompt,
    answer_tokens=16_000,
)


def drafter(state: State, runtime: Runtime[Context]) -> dict:
    """Asks until a draft passes, no more than `repairs` times again. Without one the run optimises nothing: that is said."""
    context, settings = runtime.context, state["settings"]
    began = time.monotonic()
    plan = Plan(id=PLAN, title="the module as kernels", steps=("draft",))
    draft = Draft(plan=plan)
    for repair in range(1 + settings.repairs):
        answer = _answer(draft, repair, settings, context, state)
        if not answer.source.strip():
            draft = draft.model_copy(update={"refused": answer.reason or "the drafter gave no source and no reason"})
            break
        candidate = context.store.put(answer.source)
        if candidate == draft.candidate:
            draft = draft.model_copy(update={"refused": "the drafter returned the source unchanged"})
            break
        build = context.evaluator.build(candidate)
        verdict = context.evaluator.verify(build)
        update = {"candidate": candidate, "build": build, "verdict": verdict, "repairs": repair, "notes": answer.notes}
        draft = draft.model_copy(update=update)
        if verdict.passed or settings.draft:
            break
        context.say("repair", f"the draft: {verdict.outcome}: {(verdict.reason or 'no reason').splitlines()[0]}")
    if draft.refused:
        context.say("drafter", f"no draft: {draft.refused}")
    return {"draft": draft.model_copy(update={"seconds": time.monotonic() - began})}


@contextmanager
def drafting(state: State, context: Context) -> Iterator[None]:
    """A problem's draft, which the rules will propose first, is made and built meanwhile.

    Neither this nor `compiling_ahead` needs the device, and nothing may be timed beside them. Whoever asks for what they make finds it
    where it is kept, and says what went wrong with it.
    """
    settings = state["settings"]

    def draft() -> str:
        return draft_by_rules(context.store.get(settings.source), settings.device, settings.numerics).source

    wanted = subject_of(settings).drafted and not settings.draft and context.policies["drafter"].name == "rules"
    # Without variants: a draft is not tuned, and the tests would wait for them.
    with _making(draft if wanted else None, context, variants=False):
        yield


@contextmanager
def compiling_ahead(state: State, context: Context, tests: TesterAnswer) -> Iterator[None]:
    """The same of the compiler's kernel of a reference, which depends on the sizes that there are; on a GPU's host it may outlast this."""
    settings = state["settings"]

    def compile() -> str:
        spec = context.visible_spec({**state, "tests": tests})
        asked = Compilation(
            spec=spec, reference=context.reference(), device=context.evaluator.facts, exact=settings.exact
        )
        return asked.source_ahead()[0]

    wanted = not subject_of(settings).drafted and settings.stop.rounds and context.reference()
    if not wanted or {context.policies[one].name for one in BY_RULES} != {"rules"}:
        yield
    elif settings.device == "cuda":  # whose times do not depend on who uses the cores
        _build(compile, context)
        yield
    else:
        with _making(compile, context):
            yield


def _build(make: Callable[[], str], context: Context, *, variants: bool = True) -> threading.Thread:
    def put() -> str:
        source = make()
        return context.store.put(source) if source.strip() else ""

    return begin_building(context.evaluator, make=put, variants=variants)


@contextmanager
def _making(work: Callable[[], str] | None, context: Context, *, variants: bool = True) -> Iterator[None]:
    """That work and a build of what it makes, ended when this is left."""
    building = _build(work, context, variants=variants) if work else None
    try:
        yield
    finally:
        if building:
            building.join()


def _answer(draft: Draft, repair: int, settings: Settings, context: Context, state: State) -> DraftAnswer:
    if settings.draft:
        return DraftAnswer(source=context.store.get(settings.draft), notes=("given by the person",))
    policy = context.policies["drafter"]
    request = DraftRequest(
        spec=context.visible_spec(state),
        device=context.evaluator.facts,
        problem=context.store.get(settings.source),
        numerics=settings.numerics,
        source=context.store.get(draft.candidate) if draft.candidate else "",
        failure=failure(draft) if draft.candidate else "",
        repair=repair,
    )
    if policy.name != "rules":
        return policy.answer(request)
    slow = threading.Timer(SLOW_S, context.say, ("drafter", SLOW))
    slow.start()
    try:
        return policy.answer(request)
    finally:
        slow.cancel()
