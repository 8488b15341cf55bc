"""The coder as a subgraph: a model's answers and the tools that they call, in turns, until `submit`.

    coder = for each draft: model -> tools -> model -> tools ... -> the end

Compiled without a checkpointer of its own, so it takes the run's: each answer and each tools' step is a checkpoint below
the coder's, and a kill in the middle of a turn is resumed in that turn. Its state holds hashes only, and a checkpoint only the messages
that are new (DeltaChannel: 24 KB for 16 answers with two calls each, 419 KB with whole lists). Messages and tools' arguments and results are in the store, answers in the transcript too, by the hash of all that was said before them.
"""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, cast

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.tools import StructuredTool
from langgraph.channels import DeltaChannel
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.prebuilt.tool_node import ToolCallRequest
from langgraph.runtime import Runtime
from langgraph.types import Command, Send
from pydantic import ConfigDict, ValidationError
from pydantic_core import from_json
from typing_extensions import TypedDict

from nodes.context import Context
from nodes.drafts import announce, apply_answer, conversation, make_request, refuse_draft, write_source
from nodes.policies.connection import KEPT_CHARS, MOST_CALLS
from nodes.roles import Asking, Conversation, Policy, ToolUser, Turn, TurnRequest, TurnsEnded
from nodes.roles import ToolCall as Call
from nodes.state import Draft, State
from nodes.workbench.arguments import MAKERS, SOURCE_CHARS, TOOLS, Arguments
from nodes.workbench.bench import Workbench
from nodes.workbench.results import ToolResult

FREE = ("read", "submit")
"""Tools that may still be called once their seconds are used up."""


LASTING_CHARS = 400_000
"""Some 120,000 tokens: a single agent's conversation that is longer begins anew, with the ledger of what it tried."""


@dataclass(frozen=True)
class CoderContext:
    """What a coder at work has at hand; made anew by every process, never checkpointed."""

    context: Context
    state: State
    """The run's, as the coder's node got it."""
    bench: Workbench
    began: float = field(default_factory=time.monotonic)

    @property
    def policy(self) -> Policy:
        return self.context.policies["coder"]

    def store_source(self, text: str) -> str:
        return self.context.store.put(text)


def append_messages(said: list[AnyMessage], more: Sequence[list[AnyMessage]]) -> list[AnyMessage]:
    return [*said, *itertools.chain.from_iterable(more)]


class CoderState(TypedDict, total=False):
    """One draft on the desk."""

    draft: Draft
    messages: Annotated[list[AnyMessage], DeltaChannel(append_messages)]
    """Contents are names in the store; a tool's arguments are {"kept": name}, its artifact holds the facts of a
    ToolResult."""
    ending: str
    """Why there is no further turn, where nothing was submitted."""
    done: bool
    """The draft was answered without tools."""


class CodersState(TypedDict, total=False):
    drafts: list[Draft]
    finished: Annotated[dict[str, Draft], lambda left, right: {**left, **right}]
    """Plan's id -> the finished draft."""


def code_in_turns(state: State, context: Context) -> list[Draft]:
    """The round's drafts, those that await the coder with what its turns came to."""
    settings = state["settings"]
    waiting = [_going_on(draft, state, context) for draft in state["drafts"] if draft.awaits_coder(settings.repairs)]
    bench = Workbench(
        context.evaluator,
        context.store,
        context.visible_spec(state),
        baseline=settings.source,
        incumbent=state["incumbent"].candidate,
        attempts=state.get("attempts", ()),
        reference=context.reference(),
        exact=settings.exact,
    )
    finished = DESKS.invoke(
        {"drafts": waiting},
        {"recursion_limit": 10 + (2 + MOST_CALLS) * settings.turns, "max_concurrency": settings.width},
        context=CoderContext(context, state, bench),
    ).get("finished", {})
    return [finished.get(draft.plan.id, draft) for draft in state["drafts"]]


def _going_on(draft: Draft, state: State, context: Context) -> Draft:
    """A single agent's draft in the conversation of its rounds before, while that is not too long for a model."""
    past = [attempt.conversation for attempt in state.get("attempts", ()) if attempt.conversation]
    if state["settings"].agents != "single" or draft.conversation or not past:
        return draft
    going_on = draft.model_copy(update={"conversation": past[-1]})
    turns = [turn for asking in conversation(going_on, context).askings for turn in asking.turns]
    said = sum(len(part) for turn in turns for part in (turn.text, turn.reply, *turn.results)) + sum(
        len(call.arguments) for turn in turns for call in turn.calls
    )
    return going_on if said <= LASTING_CHARS else draft


# --- one draft's turns -----------------------------------------------------------------------------------------------


def model(state: CoderState, runtime: Runtime[CoderContext]) -> CoderState:
    """The next answer, or why there is none."""
    coder_context, draft = runtime.context, state["draft"]
    settings, began = coder_context.state["settings"], time.monotonic()
    past = turns_of(state.get("messages", []), coder_context.context.store.get)
    if why := _over(coder_context, len(past)):
        return {"ending": why}
    request = make_request(draft, coder_context.state, coder_context.context)
    try:
        turn = cast(ToolUser, coder_context.policy).turn(
            TurnRequest(
                request=request,
                turns=tuple(past),
                earlier=conversation(draft, coder_context.context),
                most_turns=settings.turns,
                tool_seconds=settings.tool_seconds,
                compiler=coder_context.bench.has_compiler(),
            )
        )
    except TurnsEnded as ended:
        if not ended.oneshot or best(state):
            return {"ending": str(ended)}
        turn = None
    if turn is None:
        return {
            "draft": apply_answer(draft, coder_context.policy.answer(request), began, coder_context.context),
            "done": True,
        }
    called = ", ".join(call.name for call in turn.calls) or "no tool"
    coder_context.context.say("turn", f"{draft.plan.title}: answer {len(past) + 1} of {settings.turns}: {called}")
    calls = [
        {
            "name": call.name,
            "args": {"kept": coder_context.store_source(call.arguments)},
            "id": call.id,
            "type": "tool_call",
        }
        for call in turn.calls
    ]
    messages: list[AnyMessage] = [
        AIMessage(id=turn.name, content=coder_context.store_source(turn.text), tool_calls=calls)
    ]
    if turn.reply:
        messages.append(HumanMessage(id=f"after {turn.name}", content=coder_context.store_source(turn.reply)))
    return {"messages": messages}


def _over(coder_context: CoderContext, turns: int) -> str:
    """Why no further turn begins, or ""."""
    settings = coder_context.state["settings"]
    if turns >= settings.turns:
        return f"the coder has used its {settings.turns} answers and submitted nothing"
    spent = coder_context.state["spent"].seconds + time.monotonic() - coder_context.began
    if settings.budget.seconds is not None and spent >= settings.budget.seconds:
        return f"the run's {settings.budget.seconds:g} seconds are used up and nothing was submitted"
    return ""


def turns_of(messages: Iterable[AnyMessage], text: Callable[[str], str]) -> list[Turn]:
    """The conversation as the policy takes it; `text` gives what is kept under a name."""
    turns: list[Turn] = []
    for message in messages:
        content = text(str(message.content))
        if isinstance(message, AIMessage):
            calls = tuple(
                Call(id=str(call["id"]), name=call["name"], arguments=text(call["args"]["kept"]))
                for call in message.tool_calls
            )
            turns.append(Turn(name=str(message.id), text=content, calls=calls))
        elif isinstance(message, ToolMessage):
            turns[-1] = turns[-1].model_copy(update={"results": (*turns[-1].results, content)})
        else:
            turns[-1] = turns[-1].model_copy(update={"reply": content})
    return turns


def collect_facts(messages: Iterable[AnyMessage]) -> list[dict[str, Any]]:
    """The facts of every tool's result so far."""
    return [message.artifact for message in messages if isinstance(message, ToolMessage) and message.artifact]


def after_model(state: CoderState) -> str | Send:
    if state.get("done") or "ending" in state:
        return END
    return after_tools(state)


def after_tools(state: CoderState) -> str | Send:
    """The next call of the last answer, one at a time: each works on what the ones before it made."""
    messages = state["messages"]
    if any(fact["submitted"] for fact in collect_facts(messages)):
        return END
    at, answer = next((at, one) for at, one in reversed(list(enumerate(messages))) if isinstance(one, AIMessage))
    done = sum(isinstance(message, ToolMessage) for message in messages[at + 1 :])
    if done == len(answer.tool_calls):
        return "model"
    return Send("tools", {"__type": "tool_call_with_context", "tool_call": answer.tool_calls[done], "state": state})


def best(state: CoderState) -> str:
    """The best source that passed its check and was not submitted: the fastest that was timed, else the last; "" where there
    is none."""
    facts = [
        fact for fact in collect_facts(state.get("messages", [])) if fact["candidate"] and fact["outcome"] == "PASSED"
    ]
    right = [fact["candidate"] for fact in facts if fact["checked"]]
    gains = {fact["candidate"]: fact["gain"] for fact in facts if fact["gain"] is not None}
    return max(gains, key=lambda name: gains[name]) if gains else right[-1] if right else ""


# --- its tools -------------------------------------------------------------------------------------------------------


def _tool(name: str, arguments: type[Arguments]) -> StructuredTool:
    def run(runtime: ToolRuntime[CoderContext, Any], **given: Any) -> tuple[str, dict[str, Any]]:
        coder_context: CoderContext = runtime.context
        draft, facts = runtime.state["draft"], collect_facts(runtime.state["messages"])
        compiled = [fact["candidate"] for fact in facts if fact["tool"] in MAKERS and fact["candidate"]]
        last = compiled[-1] if compiled else draft.candidate or draft.plan.base
        result = coder_context.bench.do(arguments.model_validate(given), last)
        return result.text, result.model_dump(mode="json", exclude={"text"})

    # ToolNode hands its runtime over among the arguments; that there are no others was made sure of at the desk.
    schema = type(arguments.__name__, (arguments,), {"model_config": ConfigDict(extra="ignore")})
    return StructuredTool.from_function(
        run,
        name=name,
        description=" ".join((arguments.__doc__ or "").split()),
        args_schema=schema,
        response_format="content_and_artifact",
    )


def in_context(request: ToolCallRequest, execute: Callable[[ToolCallRequest], ToolMessage | Command]) -> ToolMessage:
    """Runs one call within its limits: arguments come from the store, what it says goes there."""
    coder_context = cast(CoderContext, request.runtime.context)
    settings, call = coder_context.state["settings"], request.tool_call
    used = sum(fact["seconds"] for fact in collect_facts(request.state["messages"]))
    text = coder_context.context.store.get(call["args"]["kept"])
    refusal = _refusal(call["name"], text, used, settings.tool_seconds)
    if refusal:
        message = ToolMessage(refusal, name=call["name"], tool_call_id=str(call["id"]), status="error")
    else:
        message = cast(ToolMessage, execute(request.override(tool_call={**call, "args": json.loads(text or "{}")})))
    fact = message.artifact or ToolResult(text="", tool=call["name"]).model_dump(mode="json", exclude={"text"})
    answer = len([one for one in request.state["messages"] if isinstance(one, AIMessage)])
    content = (
        f"{message.content}\n(answer {answer} of {settings.turns}; "
        f"tools took {used + fact['seconds']:.1f} s of {settings.tool_seconds:g} s)"
    )
    if fact["outcome"] or refusal:
        draft: Draft = request.state["draft"]
        coder_context.context.say("tool", f"{draft.plan.title}: {call['name']}: {fact['outcome'] or refusal}")
    return message.model_copy(update={"content": coder_context.store_source(content), "artifact": fact})


def _refusal(name: str, text: str, used: float, most: float) -> str:
    """Why this call is not made, or ""."""
    if name not in TOOLS:
        return f"there is no such tool; there are {', '.join(TOOLS)}"
    if used >= most and name not in FREE:
        return f"{name}: the tools' {most:g} seconds are used up: submit what you have"
    if len(text) >= KEPT_CHARS:
        return f"{name}: its arguments have {KEPT_CHARS:,} characters or more; a source has {SOURCE_CHARS:,} at most"
    try:
        from_json(text or "{}")  # bounds how deep it may be nested, where `json` would end the run by a RecursionError
    except ValueError as error:
        if "recursion" in str(error):
            return f"{name}: its arguments are nested too deep: {error}"
        return (
            f"{name}: its arguments are no whole JSON ({error}); where the answer was cut off at its limit, give edits of a "
            "source in place of the whole file"
        )[:1000]
    try:
        TOOLS[name].model_validate_json(text or "{}")
    except ValidationError as error:
        said = [f"{'.'.join(map(str, e['loc'])) or 'its arguments'}: {e['msg']}" for e in error.errors()[:4]]
        return f"{name}: {'; '.join(said)}"[:1000]
    return ""


def turns() -> CompiledStateGraph[CoderState, Any, CoderState, CoderState]:
    """One draft: model and tools in turns."""
    # Without a schema of its context, which holds live objects: a server that lists subgraphs asks for it as JSON.
    graph: StateGraph[CoderState, Any, CoderState, CoderState] = StateGraph(CoderState)
    graph.add_node("model", model)
    tools = [_tool(name, arguments) for name, arguments in TOOLS.items()]
    graph.add_node("tools", ToolNode(tools, handle_tool_errors=False, wrap_tool_call=in_context))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", after_model, ["model", "tools", END])
    graph.add_conditional_edges("tools", after_tools, ["model", "tools", END])
    return graph.compile()


TURNS = turns()


def draft(state: CoderState, runtime: Runtime[CoderContext]) -> CodersState:
    """One draft from its first turn, or from where it was left, to what came of it."""
    began = time.monotonic()
    announce(state["draft"], runtime.context.context)
    end = cast(CoderState, TURNS.invoke(state))
    plan = state["draft"].plan.id
    return {"finished": {plan: end_draft(end, began, runtime.context)}}


def end_draft(state: CoderState, began: float, coder_context: CoderContext) -> Draft:
    """The draft with what its conversation came to."""
    context, facts, messages = (
        coder_context.context,
        collect_facts(state.get("messages", [])),
        state.get("messages", []),
    )
    calls = Counter(fact["tool"] for fact in facts)
    numbers = {
        "turns": state["draft"].turns + sum(isinstance(message, AIMessage) for message in messages),
        "tools": dict(Counter(state["draft"].tools) + calls),
        "tool_seconds": round(state["draft"].tool_seconds + sum(fact["seconds"] for fact in facts), 3),
    }
    draft = state["draft"].model_copy(update=numbers)
    if state.get("done"):
        return draft.model_copy(update={"conversation": ""})
    if past := turns_of(messages, context.store.get):
        now = Asking(request=make_request(state["draft"], coder_context.state, context), turns=tuple(past))
        said = Conversation(askings=(*conversation(state["draft"], context).askings, now))
        draft = draft.model_copy(update={"conversation": coder_context.store_source(said.model_dump_json())})
    draft = draft.model_copy(update={"trials": tuple(dict.fromkeys((*draft.trials, *describe_tries(facts))))})
    submitted = next((fact for fact in facts if fact["submitted"]), None)
    if submitted is None:
        why, candidate = state["ending"], best(state)
        if not candidate:
            return refuse_draft(draft, why, began)
        context.say("coder", f"{draft.plan.title}: {why}; the best that passed its check goes to the gates")
        return write_source(draft, candidate, began)
    draft = draft.model_copy(update={"spec_doubt": submitted["spec_doubt"] or draft.spec_doubt})
    if submitted["none"]:
        return refuse_draft(draft, submitted["none"], began)
    return write_source(draft, submitted["candidate"], began, submitted["notes"])


def describe_tries(facts: Iterable[dict[str, Any]]) -> list[str]:
    """Hashes of the sources that were made, in order."""
    return list(dict.fromkeys(name for fact in facts if fact["tool"] in MAKERS for name in fact.get("made", ())))


def desks() -> CompiledStateGraph[CodersState, CoderContext, CodersState, CodersState]:
    """All drafts of a round, each at a desk of its own."""
    graph = StateGraph(CodersState, context_schema=CoderContext)
    graph.add_node("draft", draft, input_schema=CoderState)
    graph.add_conditional_edges(
        START, lambda state: [Send("draft", {"draft": one}) for one in state["drafts"]], ["draft"]
    )
    graph.add_edge("draft", END)
    return graph.compile()


DESKS = desks()
