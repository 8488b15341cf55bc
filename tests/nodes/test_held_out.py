"""The last gate: what a winner that does not hold takes with it, and by which candidate a problem without a winner counts."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.records import Outcome, Verdict
from harness.store import Store
from kernels.spec import Spec
from nodes import held_out
from nodes.fallback import PLAN
from nodes.roles import Attempt, Plan
from nodes.state import Incumbent, State
from tests.graph.doubles import BASELINE, SPEC, PaperEvaluator, settings

PROBLEM = "level1/1_Anything.py"
MEMORY = "what runs remember"


class Evaluator(PaperEvaluator):
    """One that is particular about what it compares with."""

    def measure(self, verdict: Verdict, *, baseline: str, **how: Any) -> Verdict:
        assert self.store.get(baseline) == BASELINE
        return super().measure(verdict, baseline=baseline, **how)


class Met:
    """The gate after one round on paper. `sources` are what its attempts tried, the winner's marked by `won`."""

    def __init__(
        self,
        folder: Path,
        monkeypatch: pytest.MonkeyPatch,
        *sources: str,
        won: str = "",
        fallback: bool = False,
        **of: Any,
    ) -> None:
        self.store = Store(folder / "store")
        self.evaluator = Evaluator(self.store, folder / "log")
        self.log = folder / "log"
        baseline = self.store.put(BASELINE)
        attempts = [self._attempt(number, text, baseline, won) for number, text in enumerate(sources)]
        best = next((one for one in attempts if one.accepted), None)
        if best and fallback:
            both = self._attempt(9, f"{won}\nboth", baseline, f"{won}\nboth")
            plan = Plan(id=PLAN, title="t", steps=("s",), base=best.candidate)
            best = both.model_copy(update={"plan": plan})
            attempts.append(best)
        verdict = self._verdict(best.candidate if best else baseline, baseline)
        state = State(
            settings=settings(**of), attempts=attempts, round=1,
            incumbent=Incumbent(candidate=best.candidate if best else baseline, verdict=verdict),
        )  # fmt: skip
        self.learned: list[tuple[list[str], str, str, Spec]] = []
        monkeypatch.setattr(
            held_out, "learn",
            lambda store, _state, spec, found, withdrawn, _reference: self.learned.append(
                ([a.plan.id for a in found], withdrawn, store, spec)
            ),
        )  # fmt: skip
        context = SimpleNamespace(evaluator=self.evaluator, kernel=SimpleNamespace(spec=SPEC), reference=lambda: "")
        self.log.write_text("")  # what follows is the gate's
        self.update = held_out.held_out(state, SimpleNamespace(context=context, store=MEMORY))  # type: ignore[arg-type]

    def _verdict(self, candidate: str, baseline: str) -> Any:
        found = self.evaluator.verify(self.evaluator.build(candidate))
        return self.evaluator.measure(found, baseline=baseline) if found.passed else found

    def _attempt(self, number: int, text: str, baseline: str, won: str) -> Attempt:
        candidate = self.store.put(text)
        found = self._verdict(candidate, baseline)
        return Attempt(
            round=1, plan=Plan(id=f"p{number}", title="t", steps=("s",)), candidate=candidate, outcome=found.outcome,
            accepted=text == won, speedup=found.suite.speedup.median if found.suite else None,
        )  # fmt: skip

    def source(self, name: str) -> str:
        return self.store.get(self.update[name].candidate)


@pytest.fixture
def meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return lambda *sources, **more: Met(tmp_path, monkeypatch, *sources, **more)


def test_a_problem_without_a_winner_counts_by_the_fastest_of_those_that_are_right(meet: Any) -> None:
    met = meet("speed 0.7", "speed 0.95", "speed 0.9", "incorrect\nspeed 3", "compile error", kernel=PROBLEM)
    assert set(met.update) == {"answer"} and met.source("answer") == "speed 0.95"
    assert met.update["answer"].passed and met.update["answer"].timings
    assert "verify-held-out" in met.log.read_text(), "it has met what no agent has seen"


def test_one_that_fails_on_held_out_workloads_is_a_problems_answer_with_its_failure(meet: Any) -> None:
    met = meet("speed 0.95\nheld-out fails", "speed 0.9", kernel=PROBLEM)
    assert met.update["answer"].outcome is Outcome.INCORRECT and met.source("answer").startswith("speed 0.95")


@pytest.mark.parametrize("kernel", [PROBLEM, "twice"])
def test_where_nothing_is_right_or_won_there_is_no_answer(meet: Any, kernel: str) -> None:
    assert meet("incorrect\nspeed 3", kernel=kernel).update == {}


@pytest.mark.parametrize(
    ("text", "said", "on_held_out"),
    [
        ("speed 1.5\nheld-out fails", "on held-out workloads: INCORRECT", True),
        ("speed 1.5\ndraws a zero", "INCORRECT: draw 7 of 200: a zero", False),
        ("speed 1.5\nsanitizer out of bounds", "INCORRECT: compute-sanitizer memcheck: out of bounds", False),
    ],
)
def test_a_winner_that_does_not_hold_is_withdrawn_and_a_problems_answer_is_its_failure(
    meet: Any, text: str, said: str, on_held_out: bool
) -> None:
    kernel = meet("speed 1.2", text, won=text)
    assert kernel.update["disqualified"].startswith(said) and "answer" not in kernel.update
    assert kernel.learned == [(["p1"], held_out.WITHDRAWN, MEMORY, SPEC)], "the winner's lesson, and no other's"
    assert ("held_out" in kernel.update, "incumbent" in kernel.update) == (on_held_out, on_held_out)


def test_with_the_sources_launch_beside_it_the_lesson_is_still_the_winners(meet: Any) -> None:
    text = "speed 1.5\nheld-out fails"
    met = meet("speed 1.2", text, won=text, fallback=True)
    assert met.update["disqualified"] and met.learned == [(["p1"], held_out.WITHDRAWN, MEMORY, SPEC)]


@pytest.mark.parametrize("text", ["speed 1.5\nheld-out fails", "speed 1.5\ndraws a zero"])
def test_a_problems_winner_that_does_not_hold_is_its_answer_with_its_failure(meet: Any, text: str) -> None:
    problem = meet(text, won=text, kernel=PROBLEM)
    assert problem.update["answer"].outcome is Outcome.INCORRECT and problem.update["disqualified"]
    assert problem.learned == [(["p0"], held_out.WITHDRAWN, MEMORY, SPEC)]


def test_a_winner_that_holds_has_met_what_no_agent_has_seen_and_keeps_its_lesson(meet: Any) -> None:
    text = "speed 1.5\nheld-out 1.3"
    met = meet(text, won=text)
    assert set(met.update) == {"incumbent", "held_out"} and not met.learned
    assert met.update["held_out"].suite.speedup.median == pytest.approx(1.3)
    assert met.update["incumbent"].verdict.draws.count == 200
    problem = meet(text, won=text, kernel=PROBLEM)
    assert set(problem.update) == {"incumbent", "held_out", "answer"} and not problem.learned
    assert problem.source("answer") == text and problem.update["answer"].passed


def test_a_winner_that_is_slower_there_is_none_and_a_problems_answer_is_right_all_the_same(meet: Any) -> None:
    text = "speed 1.5\nheld-out 0.8"
    met = meet(text, won=text)
    assert met.update["disqualified"] == "slower than the baseline on held-out workloads: 0.800x"
    assert met.learned == [(["p0"], held_out.WITHDRAWN, MEMORY, SPEC)]
    problem = meet(text, won=text, kernel=PROBLEM)
    assert problem.update["answer"].passed and "0.800x" in problem.update["disqualified"] and not problem.learned


def test_a_problems_winner_that_is_not_clearly_faster_in_the_end_is_right_and_no_gain(meet: Any) -> None:
    text = "speed 1.01"
    problem = meet(text, won=text, kernel=PROBLEM)
    assert problem.update["disqualified"] == "right, but not clearly faster than eager torch: SAME, 1.010x"
    assert problem.update["answer"].passed and not problem.learned
    assert "disqualified" not in meet(text, won=text).update, "a kernel's winner was FASTER when it was chosen"
