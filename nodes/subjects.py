"""What a run does by what it is about: a kernel with a baseline, or a PyTorch module, which is drafted before it is optimised."""

from __future__ import annotations

from typing import ClassVar

from harness.evaluate import measure_against
from harness.records import Comparison, Verdict
from kernels import importers
from nodes.context import Context
from nodes.state import Settings, State


class KernelSubject:
    """A kernel: it counts by a winner only."""

    drafted: ClassVar[bool] = False
    """Whether its candidates come from a draft, since what the user brought has no kernel of its own."""

    def look_elsewhere(self, winner: Verdict, settings: Settings, context: Context) -> Verdict:
        """The winner's verdict with its times between other neighbours."""
        return context.evaluator.measure_other_contexts(winner, baseline=settings.source)

    def answer(self, verdict: Verdict) -> dict:
        """The update of the state by the verdict on the candidate that the run counts by."""
        return {}

    def conclude(self, update: dict, winner: Verdict, state: State, context: Context) -> dict:
        """The update by a winner that is right on all workloads, given what the gates before made of it, with its times against
        torch.compile where they were asked for."""
        compared = _compare_with_compiled(winner, state, context)
        update = update | self.answer(compared)
        if not compared.passed:  # found out while it was timed against torch.compile
            return update | {"disqualified": f"{compared.outcome}: {compared.reason}"}
        return update | {"incumbent": state["incumbent"].model_copy(update={"verdict": compared})}

    def conclude_without_winner(self, state: State, context: Context) -> dict:
        return {}


class ProblemSubject(KernelSubject):
    """A PyTorch module: it counts by a candidate that is right even where none is faster than eager torch, the fastest of those."""

    drafted = True

    def look_elsewhere(self, winner: Verdict, settings: Settings, context: Context) -> Verdict:
        return winner  # a module's neighbours are other modules' kernels

    def answer(self, verdict: Verdict) -> dict:
        return {"answer": verdict}

    def conclude(self, update: dict, winner: Verdict, state: State, context: Context) -> dict:
        update = super().conclude(update, winner, state, context)
        suite = update["answer"].suite if update["answer"].passed else None
        if suite is not None and suite.comparison is not Comparison.FASTER:
            said = f"right, but not clearly faster than eager torch: {suite.comparison}, {suite.speedup.median:.3f}x"
            update.setdefault("disqualified", said)
        return update

    def conclude_without_winner(self, state: State, context: Context) -> dict:
        right = [attempt for attempt in state.get("attempts", ()) if attempt.speedup is not None]
        if not right:
            return {}
        fastest = max(right, key=lambda attempt: attempt.speedup or 0.0).candidate
        verdict = _meet_unseen(fastest, state["settings"].source, context)
        return self.answer(_compare_with_compiled(verdict, state, context) if verdict.passed else verdict)


def subject_of(settings: Settings) -> KernelSubject:
    return ProblemSubject() if importers.is_problem(settings.kernel) else KernelSubject()


def _compare_with_compiled(verdict: Verdict, state: State, context: Context) -> Verdict:
    """The verdict with its times against torch.compile, where they were asked for."""
    for mode in state["settings"].compare:
        verdict = measure_against(context.evaluator, verdict, mode)
    return verdict


def _meet_unseen(candidate: str, baseline: str, context: Context) -> Verdict:
    """The verdict on a candidate that is no winner: it passed and was timed before, and meets what no agent has seen."""
    evaluator = context.evaluator
    build = evaluator.build(candidate)
    if evaluator.suite(held_out=True):
        unseen = evaluator.verify(build, held_out=True)
        if not unseen.passed:
            return unseen
    return evaluator.measure(evaluator.verify(build), baseline=baseline)
