"""The graph for LangGraph's own server and Studio (langgraph.json; docs/studio.md).

There a run is configured by plain values, any thread may work on the next node, and a person may edit the state. So each
node makes its live Context anew from the configuration and the state, and ends it with itself; what was built and judged
before is found by content in one store for all of Studio's runs.
"""

from __future__ import annotations

import argparse
import functools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

from langchain_core.runnables import RunnableConfig
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from graph.choices import choose
from graph.opening import opened
from graph.runs import RunError
from graph.workflow import build
from harness.device import DeviceError
from harness.rig import MissingTool
from harness.store import Store
from kernels.catalog import KernelError
from nodes.context import Context
from nodes.roles import ROLES
from nodes.state import STATE_VERSION, Settings, State

FOLDER = Path("runs") / "studio"
"""Sources, builds and verdicts, and a transcript for each thread. Without run.json: `run.py runs` does not list it."""
_STATE = TypeAdapter(State)
_ONE_AT_A_TIME = threading.Lock()
"""The server works on several threads' runs at once; what is timed beside each other is not timed at all."""


class Asked(BaseModel):
    """What `run.py`'s options say elsewhere. Read once, by the first node; from then on the state's `settings` hold."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    kernel: str = "silu_and_mul"
    """A kernel of the catalog, the path of a folder, or that of a PyTorch module in KernelBench's form."""
    device: Literal["auto", "cuda", "cpu"] = "cpu"
    baseline: str | None = None
    """The kernel's baseline that 1.0x is; None: its default."""
    dtype: list[str] = Field(default_factory=list)
    """Only these of the spec; none: all."""
    rounds: int = Field(default=5, ge=0)
    width: int = Field(default=1, ge=1)
    """Different plans a round."""
    repairs: int = Field(default=2, ge=0)
    patience: int | None = Field(default=None, ge=1)
    tune_seconds: float | None = Field(default=None, ge=0)
    """Search of open integers, each."""
    seconds: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=0)
    money: float | None = Field(default=None, ge=0)
    exact: bool = False
    """Only candidates whose outputs are the baseline's in every bit."""
    approve: Literal["plans", "candidates"] | None = None
    """Interrupts, which Studio shows and answers: "yes", "no: why", or {"edit": text}."""
    policy: Literal["auto", "rules", "chat"] = "rules"
    model: str | None = None
    """Language model of the policy chat (key: OPENAI_API_KEY)."""


class Nothing(TypedDict, total=False):
    """A run needs no input; its configuration says what to do."""

    settings: Settings


def studio() -> CompiledStateGraph:
    """The same graph as a run's, its nodes made to live by themselves. The server brings the checkpointer."""
    return build(context_schema=Asked, input_schema=Nothing, node=living, route=reading)


def reading(route: Callable[[State], str]) -> Callable[[State], str]:
    """`route`, of a state that a person may have edited as JSON."""

    @functools.wraps(route)
    def read(state: State) -> str:
        return route(typed(state))

    return read


def living(node: Callable[[State, Runtime[Context]], dict[str, Any]]) -> Callable[..., dict[str, Any]]:
    """`node`, given a Context of its own from what the run was asked for and its state."""

    def run(state: State, runtime: Runtime[Asked], config: RunnableConfig) -> dict[str, Any]:
        try:
            return _alive(node, typed(state), runtime, str(config["configurable"]["thread_id"]))
        except (RunError, KernelError, DeviceError, MissingTool) as error:
            raise ValueError(str(error)) from error  # the server shows the words of Python's own errors only

    run.__name__ = node.__name__
    return run


def _alive(node: Callable[..., dict[str, Any]], state: State, runtime: Runtime[Asked], thread: str) -> dict[str, Any]:
    begun = {} if "settings" in state else begin(runtime.context or Asked(), thread)
    state = cast(State, {**state, **begun})
    settings = state["settings"]

    def say(kind: str, text: str) -> None:
        runtime.stream_writer({"kind": kind, "text": text})

    transcript = FOLDER / "transcripts" / f"{settings.run_id}.jsonl"
    with _ONE_AT_A_TIME, opened(settings, store(), transcript, state, say) as context:
        return {**begun, **node(state, runtime.override(context=cast(Any, context)))}


def typed(state: State) -> State:
    """Records where a person's edit left dicts. Raises ValueError naming the first place that does not fit."""
    try:
        return _STATE.validate_python(state)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise ValueError(f"the state was edited so that it does not fit: {where}: {first['msg']}") from None


BY_ROLE = ("policy", "model", "tokens", "money", "answer_tokens", "effort")
"""Options of run.py that each role has, too."""


def store() -> Store:
    return Store((FOLDER / "store").resolve())


def begin(asked: Asked, thread: str) -> dict[str, Any]:
    """The first facts of a run. Raises what `choose` does: KernelError, DeviceError or RunError."""
    roles = {f"{what}_{role}": None for what in BY_ROLE for role in ROLES}
    choice = choose(
        argparse.Namespace(
            **asked.model_dump(), **roles, source=None, run_id=f"studio-{thread}", light=0.97, sandbox="auto",
            agents="four", coder="tools", turns=16, tool_seconds=None, interface="chat", when_spent="rules", prices=None,
            transcript=None, words=[], draft=None, own_kernels="some", numerics="eager", compare=[], memory="off", review=False,
            answer_tokens=None, effort=None, idle_seconds=None, answer_seconds=None,
        )
    )  # fmt: skip
    store().put(choice.source)
    return {"version": STATE_VERSION, "settings": choice.settings.model_copy(update={"command": ""})}
