"""Routes are pure functions: what they answer for every mix of drafts."""

from __future__ import annotations

from typing import get_args, get_type_hints

from hypothesis import given
from hypothesis import strategies as st

from graph import routes
from graph.workflow import NODES, build, difference, recursion_limit, signature
from harness.records import Build, Check, Outcome, Verdict
from nodes import agents
from nodes.roles import Plan
from nodes.state import Draft, Spent, State, Stop
from tests.graph.doubles import settings

PLAN = Plan(id="p", title="t", steps=("s",))


def verdict(outcome: Outcome) -> Verdict:
    check = Check(workload="w", name="ordinary", passed=outcome is Outcome.PASSED)
    return Verdict(candidate="c", kernel="k", device="d", outcome=outcome, reason="why", checks=(check,))


drafts = st.builds(
    Draft,
    plan=st.just(PLAN),
    candidate=st.sampled_from(["", "a" * 64]),
    build=st.sampled_from([None, Build(candidate="c", backend="cpu", ok=True)]),
    verdict=st.sampled_from([None, *(verdict(outcome) for outcome in Outcome)]),
    repairs=st.integers(0, 3),
    refused=st.sampled_from(["", "because"]),
).filter(lambda draft: draft.candidate or draft.verdict is None)


def state(found: list[Draft], **more) -> State:
    return State(settings=settings(repairs=2), drafts=found, spent=Spent(), round=1, stale_rounds=0, **more)


@given(st.lists(drafts, max_size=4))
def test_after_verify(found: list[Draft]) -> None:
    following = routes.after_verify(state(found))
    repairable = [d for d in found if d.failed and not d.refused and d.repairs < 2]
    passed = [d for d in found if d.verdict is not None and d.verdict.passed]
    assert following == ("coder" if repairable else "tune" if passed else "select")


@given(st.lists(drafts, max_size=4))
def test_after_compile_goes_back_only_with_something_to_repair(found: list[Draft]) -> None:
    following = routes.after_compile(state(found))
    assert (following == "coder") == any(d.failed and d.awaits_coder(2) for d in found)


@given(st.lists(drafts, max_size=4))
def test_nothing_is_repaired_once_the_budget_is_spent(found: list[Draft]) -> None:
    spent = state(found)
    spent["settings"] = settings(repairs=2, seconds=1.0)
    spent["spent"] = Spent(seconds=2.0)
    assert routes.after_compile(spent) == "verify"
    assert routes.after_verify(spent) != "coder"


@given(st.one_of(st.none(), st.sampled_from(Stop)))
def test_a_stop_leads_to_the_held_out_workloads(stop: Stop | None) -> None:
    at = state([]) if stop is None else state([], stop=stop)
    assert routes.after_planner(at) == ("contest" if stop else "review_plans")
    assert routes.after_contest(at) == ("fallback" if stop else "profiler")
    expected = {None: "profiler", Stop.BASELINE: "__end__"}.get(stop, "held_out")
    assert routes.after_baseline(at) == expected


@given(st.lists(st.sampled_from(["", "it divides by the number of columns"]), max_size=4))
def test_one_objection_of_the_reviewer_asks_again(objections: list[str]) -> None:
    at = state([Draft(plan=PLAN, objection=objection) for objection in objections])
    assert routes.after_review_plans(at) == ("planner" if any(objections) else "approve_plans")
    assert routes.after_review_candidates(at) == ("coder" if any(objections) else "approve_candidates")


def test_a_problem_is_drafted_before_it_is_measured() -> None:
    assert routes.after_tester(state([])) == "baseline"
    assert routes.after_tester(state([]) | {"settings": settings(kernel="model.py")}) == "drafter"


def test_every_route_names_nodes_that_exist() -> None:
    names = {node.__name__ for node in NODES} | {"__end__"}
    for name in (
        "after_tester",
        "after_baseline",
        "after_planner",
        "after_review_plans",
        "after_review_candidates",
        "after_compile",
        "after_verify",
        "after_contest",
    ):
        assert set(get_args(get_type_hints(getattr(routes, name))["return"])) <= names


def test_node_names_are_a_storage_format() -> None:
    """Renaming a node strands every run that stands before it: do it only together with STATE_VERSION."""
    assert signature()["nodes"] == [
        "approve_candidates", "approve_plans", "baseline", "coder", "compile", "contest", "drafter", "fallback", "held_out", "measure",
        "planner", "profiler", "review_candidates", "review_plans", "select", "tester", "tune", "verify",
    ]  # fmt: skip
    assert set(build().get_graph().nodes) == {*signature()["nodes"], "__start__", "__end__"}


def test_each_node_is_in_the_file_that_design_md_gives_it() -> None:
    homes = {"approve_plans": "nodes.approve", "approve_candidates": "nodes.approve"}
    homes |= {node: f"nodes.agents.{name}" for name in agents.NAMES for node in agents.load(name).nodes}
    for node in NODES:
        assert node.__module__ == homes.get(node.__name__, f"nodes.{node.__name__}")


def test_the_difference_of_two_graphs_is_said_by_name() -> None:
    older = signature() | {"state_version": 0, "nodes": ["judge", *signature()["nodes"][1:]], "fields": ["old"]}
    said = difference(older)
    assert "version 0, here it is 1" in said
    assert "its node 'judge' is not there any more" in said
    assert "it does not know the node 'approve_candidates'" in said
    assert "its state field 'old'" in said
    assert difference(signature()) == ""


def test_the_recursion_limit_covers_a_run_that_repairs_all_it_may() -> None:
    assert recursion_limit(settings(rounds=5, width=1, repairs=2)) >= 3 + 5 * (6 + 3 * 4)
    assert recursion_limit(settings(rounds=0)) >= 3
