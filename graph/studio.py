"""The graph for LangGraph's own server and Studio (langgraph.json; docs/studio.md).

There a run is configured by plain values, any thread may work on the next node, and a person may edit the state. So each
node makes its live Context anew from the configuration and the state, and ends it with itself; what was built and judged
before is found by content in one store for all of Studio's runs.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict

from graph.choices import choose
from graph.opening import make_context
from graph.request import OpenRequest
from graph.runs import RunError
from graph.workflow import build
from harness.device import DeviceError
from harness.judge.session import MissingTool
from harness.store import Store
from kernels.catalog import KernelError
from nodes.context import Context
from nodes.state import STATE_VERSION, Settings, State

FOLDER = Path("runs") / "studio"
"""Sources, builds and verdicts, and a transcript for each thread. Without run.json: `run.py runs` does not list it."""
_STATE = TypeAdapter(State)
_ONE_AT_A_TIME = threading.Lock()
"""The server works on several threads' runs at once; what is timed beside each other is not timed at all."""


class StudioRequest(OpenRequest):
    """What `run.py`'s options say elsewhere. Read once, by the first node; from then on the state's `settings` hold."""

    kernel: str = "silu_and_mul"
    device: Literal["auto", "cuda", "cpu"] = "cpu"
    policy: Literal["auto", "rules", "chat", "replay"] = "rules"


class Nothing(TypedDict, total=False):
    """A run needs no input; its configuration says what to do."""

    settings: Settings


def studio() -> CompiledStateGraph:
    """The same graph as a run's, its nodes made to live by themselves. The server brings the checkpointer."""
    return build(context_schema=StudioRequest, input_schema=Nothing, node=living, route=reading)


def reading(route: Callable[[State], str]) -> Callable[[State], str]:
    """`route`, of a state that a person may have edited as JSON."""

    @functools.wraps(route)
    def read(state: State) -> str:
        return route(restore_records(state))

    return read


def living(node: Callable[[State, Runtime[Context]], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """`node`, given a Context of its own from what the run was asked for and its state."""

    def run(state: State, runtime: Runtime[StudioRequest], config: RunnableConfig) -> dict[str, Any]:
        try:
            return _alive(node, restore_records(state), runtime, str(config["configurable"]["thread_id"]))
        except (RunError, KernelError, DeviceError, MissingTool) as error:
            raise ValueError(str(error)) from error  # the server shows the words of Python's own errors only

    run.__name__ = node.__name__
    return run


def _alive(
    node: Callable[..., dict[str, Any]], state: State, runtime: Runtime[StudioRequest], thread: str
) -> dict[str, Any]:
    begun = {} if "settings" in state else begin(runtime.context or StudioRequest(), thread)
    state = cast(State, {**state, **begun})
    settings = state["settings"]

    def say(kind: str, text: str) -> None:
        runtime.stream_writer({"kind": kind, "text": text})

    transcript = FOLDER / "transcripts" / f"{settings.run_id}.jsonl"
    with _ONE_AT_A_TIME, make_context(settings, store(), transcript, state, say) as context:
        return {**begun, **node(state, runtime.override(context=cast(Any, context)))}


def restore_records(state: State) -> State:
    """Records where a person's edit left dicts. Raises ValueError naming the first place that does not fit."""
    try:
        return _STATE.validate_python(state)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"the state was edited so that it does not fit: {where}: {first['msg']}") from None


def store() -> Store:
    return Store((FOLDER / "store").resolve())


def begin(asked: StudioRequest, thread: str) -> dict[str, Any]:
    """The first facts of a run. Raises what `choose` does: KernelError, DeviceError or RunError."""
    choice = choose(asked.with_(run_id=f"studio-{thread}"))
    store().put(choice.source)
    return {"version": STATE_VERSION, "settings": choice.settings}
