"""What the rules make of what earlier runs learned: on a landscape that is made up, so that it is the same everywhere."""

from __future__ import annotations

import math

import pytest

from harness.records import Outcome
from nodes.lesson import Lesson
from nodes.policies.rules import RulesPolicy
from nodes.policies.search import MOST_MEMORY, Search
from nodes.roles import Attempt, Plan, PlannerRequest
from tests.nodes.policies.test_rules import KERNEL, Run
from tests.nodes.test_memory import told

TRUTH = {
    "trim_vector_tail": 0.97,
    "fast_math": 0.8,
    "grid_stride": 1.4,
    "drop_grid_stride_loop": 0.9,
    "vectorize": 1.3,
}
"""What each step is worth on this device; others are worth nothing."""


class Taught(Run):
    def __init__(self, memory: tuple[Lesson, ...] = ()) -> None:
        super().__init__()
        self.memory, self.paths = memory, {self.root: ()}

    def request(self) -> PlannerRequest:
        return super().request().model_copy(update={"memory": self.memory})

    def truth(self, plan: Plan) -> float:
        """The forms of a step and the numbers of a search are all alike here."""
        path = tuple(dict.fromkeys((*self.paths[plan.base], *plan.steps)))
        self.paths[self.code_name(plan)] = path
        return math.prod(TRUTH.get(step.partition(":")[0], 1.0) for step in path)

    def code_name(self, plan: Plan) -> str:
        from harness.store import digest

        return digest(self.code(plan))

    def rounds_to(self, target: float) -> int:
        return next((a.round for a in self.attempts if (a.speedup or 0) >= target), len(self.attempts) + 1)

    def lessons(self, kernel: str) -> tuple[Lesson, ...]:
        best = max(self.attempts, key=lambda attempt: attempt.speedup or 0.0)
        return tuple(self.lesson(attempt, kernel, attempt is best) for attempt in self.attempts)

    def lesson(self, attempt: Attempt, kernel: str, kept: bool) -> Lesson:
        before = next((a.speedup for a in self.attempts if a.candidate == attempt.plan.base), 1.0) or 1.0
        assert attempt.speedup is not None
        return told(
            kernel, device="cuda", architecture="sm_90", steps=attempt.plan.steps[:16], path=self.paths[attempt.candidate],
            over_base=attempt.speedup / before, speedup=attempt.speedup, kept=kept, title=attempt.plan.title[:160],
        )  # fmt: skip


def test_a_second_run_needs_fewer_rounds_to_the_same_speedup() -> None:
    first = Taught()
    first.play(4, first.truth)
    second = Taught(first.lessons("another"))
    second.play(1, second.truth)
    assert first.rounds_to(first.best) >= 2
    assert second.rounds_to(0.99 * first.best) == 1


def test_nothing_remembered_changes_nothing() -> None:
    plain, taught = Run().request(), Taught().request()
    assert RulesPolicy().planner(plain) == RulesPolicy().planner(taught)


def test_however_often_it_was_remembered_what_this_run_measures_decides() -> None:
    praised = tuple(
        told(KERNEL.spec.name, steps=("fast_math",), over_base=2.0, evidence=f"{n:064d}") for n in range(40)
    )
    run = Taught(praised)
    believed = Search(run.request()).gains["fast_math"]
    assert believed == pytest.approx(math.log(2.0), abs=0.05)
    for number in range(6):
        plan = Plan(id=f"{number}", title="", steps=("fast_math",), base=run.root)
        run.attempts.append(Attempt(round=1, plan=plan, candidate="c" * 64, outcome=Outcome.PASSED, speedup=0.8))
    found = Search(run.request()).gains["fast_math"]
    weight = 6 / (6 + MOST_MEMORY + 0.5)
    assert found == pytest.approx(weight * math.log(0.8) + (1 - weight) * believed, abs=0.01)


def test_a_plan_that_gained_blames_none_of_its_steps_and_a_plan_without_one_does() -> None:
    steps = ("grid_stride", "fast_math", "drop_grid_stride_loop")
    plain = Search(Run().request()).gains
    gained = told("another", steps=steps, over_base=1.05, speedup=1.05)
    found = Search(Taught((gained,)).request()).gains
    assert all(0 < found[step] < plain[step] for step in steps)
    better = told("another", steps=("grid_stride", "drop_grid_stride_loop"), over_base=1.4, evidence="e" * 64)
    assert Search(Taught((gained, better)).request()).gains["fast_math"] < 0
    lost = told("another", steps=steps, over_base=0.9, speedup=0.9, kept=False)
    assert Search(Taught((lost,)).request()).gains["fast_math"] < 0


def test_a_failure_that_is_remembered_comes_later_and_what_was_not_tried_says_nothing() -> None:
    plain = Search(Run().request()).gains["grid_stride"]
    useless = told(KERNEL.spec.name, steps=("grid_stride",), over_base=1.0, speedup=1.0, kept=False)
    useless_gain = Search(Taught((useless,)).request()).gains["grid_stride"]
    for outcome, changes in (("INCORRECT", True), ("REFUSED", False), ("NO_CANDIDATE", False), ("CHEATED", False)):
        lesson = told(
            KERNEL.spec.name,
            steps=("grid_stride",),
            outcome=outcome,
            gain=None,
            over_base=None,
            speedup=None,
            kept=False,
        )
        found = Search(Taught((lesson,)).request()).gains["grid_stride"]
        assert (found < plain) is changes and (changes or found == plain)
        assert (found < useless_gain) is changes, "what failed promises less than what gained nothing"


def test_steps_that_are_no_rewrite_are_left_out() -> None:
    hostile = told(KERNEL.spec.name, steps=("__import__('os')",), path=("rm -rf", "grid_stride"), over_base=9.0)
    (plan,) = RulesPolicy().planner(Taught((hostile,)).request())
    assert all(step.partition(":")[0] in Search(Run().request()).names for step in plan.steps)
