"""What a run's state becomes in its result."""

from __future__ import annotations

from graph.result import _warnings
from harness.report.result import PlanRow
from nodes.roles import Attempt, Finding, Plan
from nodes.state import State


def test_what_agents_doubt_of_the_spec_is_a_warning_of_the_report() -> None:
    plan = Plan(id="p", title="t", steps=("s",), spec_doubt="Half of it is padding.")
    attempts = [
        Attempt(round=2, plan=plan, outcome="NO_CANDIDATE", spec_doubt="The mask is never read."),
        Attempt(round=3, plan=plan.model_copy(update={"spec_doubt": ""}), outcome="NO_CANDIDATE"),
    ]
    finding = Finding(bound="memory", summary="s", spec_doubt="It reads the table once.")
    assert _warnings(State(finding=finding, attempts=attempts), ()) == (
        "the profiler doubts the spec: It reads the table once.",
        "the planner, in round 2, doubts the spec: Half of it is padding.",
        "the coder, in round 2, doubts the spec: The mask is never read.",
    )
    assert _warnings(State(), ()) == ()
    assert PlanRow.made_from(plan).title == "t"
