"""The whole graph on one screen.

    tester -> [drafter ->] baseline -> round* -> fallback -> held_out
    round: profiler -> planner [<-> reviewer] -> coder [<-> reviewer] -> compile -> verify -> tune -> measure -> select -> contest

`[approve]` nodes beside the reviewers' ask a person (--approve); `contest` measures again what stayed UNCLEAR.

Node names are a storage format: a checkpoint says by name which node comes next. Renaming one changes the signature,
and a run that was made before is refused by name instead of ending silently.
"""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import Callable
from typing import Any

from langgraph.checkpoint.base import BaseCheckpointSaver
from langgraph.graph import END, START, StateGraph
from langgraph.graph.state import CompiledStateGraph
from langgraph.runtime import Runtime
from langgraph.store.base import BaseStore

from graph import routes
from nodes.agents.coder import coder
from nodes.agents.drafter import drafter
from nodes.agents.planner import planner
from nodes.agents.profiler import profiler
from nodes.agents.reviewer import REVISIONS, review_candidates, review_plans
from nodes.agents.tester import tester
from nodes.approve import approve_candidates, approve_plans
from nodes.baseline import baseline
from nodes.coding import TURNS
from nodes.compile import compile
from nodes.contest import contest
from nodes.context import Context
from nodes.fallback import fallback
from nodes.held_out import held_out
from nodes.measure import measure
from nodes.select import select
from nodes.spans import span
from nodes.state import STATE_VERSION, Settings, Spent, State
from nodes.tune import tune
from nodes.verify import verify

Node = Callable[[State, Runtime[Context]], dict[str, Any]]
NODES: tuple[Node, ...] = (
    tester, drafter, baseline, profiler, planner, review_plans, approve_plans, coder, review_candidates, approve_candidates,
    compile, verify, tune, measure, select, contest, fallback, held_out,
)  # fmt: skip


def leave_node(piece: Any) -> Any:
    return piece


def build(
    checkpointer: BaseCheckpointSaver | None = None,
    store: BaseStore | None = None,
    *,
    context_schema: type = Context,
    input_schema: type = State,
    node: Callable[[Node], Callable[..., dict[str, Any]]] = leave_node,
    route: Callable[[Callable[[State], str]], Callable[[State], str]] = leave_node,
) -> CompiledStateGraph:
    """`store` is what runs remember (graph/memory.py). `node` and `route` wrap what the graph is made of, for a server that knows other contexts (graph/studio.py).

    A process compiles the graph once, which takes longer (0.2 s) than all else that LangGraph does in a short run.
    """
    graph = copy.copy(_compile(NODES, context_schema, input_schema, node, route))
    graph.checkpointer = graph._apply_checkpointer_allowlist(checkpointer)  # as StateGraph.compile does
    graph.store = store
    return graph


@functools.lru_cache(maxsize=8)
def _compile(
    nodes: tuple[Node, ...],
    context_schema: type,
    input_schema: type,
    node: Callable[[Node], Callable[..., dict[str, Any]]],
    route: Callable[[Callable[[State], str]], Callable[[State], str]],
) -> CompiledStateGraph:
    graph = StateGraph(State, context_schema=context_schema, input_schema=input_schema)
    for one in nodes:
        graph.add_node(one.__name__, node(account_time(one)), input_schema=State)

    graph.add_edge(START, "tester")
    graph.add_conditional_edges("tester", route(routes.after_tester))
    graph.add_edge("drafter", "baseline")
    graph.add_conditional_edges("baseline", route(routes.after_baseline))

    graph.add_edge("profiler", "planner")
    graph.add_conditional_edges("planner", route(routes.after_planner))
    graph.add_conditional_edges("review_plans", route(routes.after_review_plans))
    graph.add_edge("approve_plans", "coder")
    graph.add_edge("coder", "review_candidates")
    graph.add_conditional_edges("review_candidates", route(routes.after_review_candidates))
    graph.add_edge("approve_candidates", "compile")
    graph.add_conditional_edges("compile", route(routes.after_compile))
    graph.add_conditional_edges("verify", route(routes.after_verify))
    graph.add_edge("tune", "measure")
    graph.add_edge("measure", "select")
    graph.add_edge("select", "contest")
    graph.add_conditional_edges("contest", route(routes.after_contest))

    graph.add_edge("fallback", "held_out")
    graph.add_edge("held_out", END)
    compiled = graph.compile()
    compiled.nodes["coder"].subgraphs = [TURNS]  # for pictures: LangGraph does not find what `account_time` wraps
    return compiled


def account_time(node: Node) -> Node:
    """`node`, adding its wall time, less what it waited for a device that others used, and what its policies spent to `state["spent"]`."""

    @functools.wraps(node)
    def run(state: State, runtime: Runtime[Context]) -> dict[str, Any]:
        began, waited_s = time.monotonic(), runtime.context.evaluator.waited_s
        with span(node.__name__, astrolabe__round=state.get("round", 0)):
            update = node(state, runtime)
        waited_s = runtime.context.evaluator.waited_s - waited_s
        seconds = max(0.0, time.monotonic() - began - waited_s)
        spent = state.get("spent", Spent()).after(node.__name__, seconds, runtime.context.usage())
        return {**update, "spent": spent}

    return run


def recursion_limit(settings: Settings) -> int:
    """No run of these settings takes as many steps: every node once for each pass that a round can have, and once outside of rounds.

    A repair pass may repair a single candidate of several.
    """
    passes = 1 + settings.repairs * settings.width + 2 * REVISIONS
    return len(NODES) * (1 + settings.stop.rounds * passes)


def signature() -> dict[str, Any]:
    """What a checkpoint depends on beside its values: a run made under another one is not resumed silently."""
    return {
        "state_version": STATE_VERSION,
        "nodes": sorted(node.__name__ for node in NODES),
        "fields": sorted(State.__annotations__),
    }


def difference(theirs: dict[str, Any]) -> str:
    """How another graph's signature differs from this one, by name; "" where it does not."""
    ours, said = signature(), []
    if theirs.get("state_version") != ours["state_version"]:
        said.append(f"its state has version {theirs.get('state_version')}, here it is {ours['state_version']}")
    for key, word in (("nodes", "node"), ("fields", "state field")):
        gone = sorted(set(theirs.get(key, ())) - set(ours[key]))
        new = sorted(set(ours[key]) - set(theirs.get(key, ())))
        said += [f"its {word} {name!r} is not there any more" for name in gone]
        said += [f"it does not know the {word} {name!r}" for name in new]
    return ", ".join(said)
