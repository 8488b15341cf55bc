"""What the Evaluator does for problems only: whose kernels worked, whether the problem is sound, torch.compile beside it."""

from __future__ import annotations

import math
import time
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from harness import backends
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.tolerance import compute_expected
from harness.judge import shares
from harness.judge.module_checks import (
    CONTIGUOUS,
    check_initial_state,
    check_second_module,
    leaves_constants_out,
    name_modes_unlike_models,
    takes_strides,
)
from harness.judge.rules import KernelRules, kernels_of_calls, profile_timed_calls
from harness.judge.session import VERSION, EvaluationSession
from harness.problems import degenerate as degeneracy
from harness.problems.pytorch import Problem
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build, Cache, Check, Outcome
from harness.store import digest
from harness.timing.mixtures import is_persistent, two_calls
from kernels.spec import Frozen, Workload

if TYPE_CHECKING:
    import torch

MOST_WEIGHTS = 64 << 20
"""Bytes of a problem's weights up to which a process has its modules several times."""
TWICE_WEIGHTS = 1 << 30
"""The same up to which it has them twice, one module after another."""
UNSEEN = "whose kernels did the work is not checked: on a CPU no profile tells them apart"

COPIES_TIMED = 7
"""Copies of a state, of which the quickest counts."""
DIFFERS = 0.5
"""Share of the elements that another draw changes which two calls of one draw must differ in; below it the output is
known from the draw."""


class Sentence(Frozen):
    text: str


class CallProfile(Frozen):
    """Microseconds of device time of one call, by kernel name."""

    kernels: dict[str, float]


class ProblemRules(KernelRules):
    """The rules for a PyTorch module."""

    judges_failed_builds = True
    draws_s = 4.0  # a network takes a tenth of a second for one

    def __init__(self, session: EvaluationSession, problem: Problem) -> None:
        super().__init__(session)
        assert problem.description is not None
        self.problem, self.description = problem, problem.description
        self.has_state = bool(problem.description.state)
        self.libraries = session.settings.own_kernels == "some"

    def backend(self, text: str) -> ModuleType:
        return backends.for_source(text, self.session.device, problem=backends.is_python(text))

    def is_model(self, candidate: str) -> bool:
        return candidate in self.problem.sources()

    def eager(self) -> tuple[str, ...]:
        return (self.session.store.put(self.problem.text),)

    def compiled_source(self, mode: str) -> str:
        return self.problem.compiled_source(mode)

    def start(self, build: Build, *, company: Path, compilers: bool) -> Worker | None:
        if build.backend != "model_new":
            return None
        artefact, libraries = Path(build.artefact), self.libraries
        return self.problem.start(build.candidate, artefact, libraries=libraries, company=company, compilers=compilers)

    def start_beside(self, build: Build, *, company: Path) -> Worker | None:
        """Eager torch in the process of the references, which keeps its weights once more."""
        box = self.problem.box
        if box is None or build.candidate not in self.eager() or self.description.weight_bytes > MOST_WEIGHTS:
            return None
        return box.beside_references(self.problem, company)

    def check_further(self, build: Build, workloads: tuple[Workload, ...]) -> tuple[list[Check], tuple[str, ...]]:
        if self.description.weight_bytes > TWICE_WEIGHTS or self.is_model(build.candidate):
            return [], ()
        made: list[Check] = []
        said: tuple[str, ...] = ()
        smallest = min(workloads, key=self.session.moved_bytes)
        if self.description.weight_bytes <= MOST_WEIGHTS:
            made, said = check_second_module(self.session, self.problem, build, workloads)
        said = (*said, *leaves_constants_out(self.session, self.problem, build, smallest))
        if self.has_state:
            made.append(check_initial_state(self.session, self.problem, build, smallest))
        if not self.description.random and not takes_strides(self.session, build, smallest):
            said = (*said, CONTIGUOUS)
        return made, (*said, *name_modes_unlike_models(self.session, self.problem, build, smallest))

    def initial_state(self, workload: Workload) -> dict[str, torch.Tensor]:
        return self.problem.initial_state(workload)

    def carried_s(self, workload: Workload) -> float:
        import torch

        spec, taken = self.session.spec, [math.inf]
        state = [one for one in spec.inputs if f"{one.name}_after" in {output.name for output in spec.outputs}]
        of = [
            torch.zeros(spec.shape(one, workload.axes), dtype=getattr(torch, spec.dtype(one, workload)))
            for one in state
        ]
        to = [torch.zeros_like(one) for one in of]
        for _ in range(COPIES_TIMED if state else 0):
            began = time.perf_counter()
            torch._foreach_copy_(to, of)
            torch._foreach_copy_(of, to)
            taken.append(time.perf_counter() - began)
        return min(taken) if state else 0.0

    def name_fault(self, reason: str) -> str:
        return self.problem.name_fault(reason)

    def degenerate(self) -> tuple[str, ...]:
        """What passes KernelBench's check on this problem without computing; found once, at the largest size that is timed.

        Not asked anew where a tester adds workloads: the question is about the problem as it is shipped.
        """
        session, problem = self.session, self.problem
        workload = [one for one in session.suite() if one.timed][-1]
        key = digest("degenerate", VERSION, problem.defines_right(), workload.label, session.facts.model_dump_json())

        def look() -> degeneracy.Degenerate:
            session.say("looking whether the problem can be solved without computing")
            return degeneracy.look(problem, workload, session.device)

        return session.store.once("degenerate", key, degeneracy.Degenerate, look).passes

    def look_at_kernels(self, build: Build, workload: Workload) -> tuple[str, ...]:
        """Notes for the verdict. Raises WorkerFailure where a GPU's profile shows that the candidate's own kernels do nothing.

        On a GPU the candidate's process, and eager torch's, ends with it.
        """
        session, notes = self.session, (self.problem.says(),)
        if session.settings.own_kernels == "all":
            return notes
        (eager,) = self.eager()
        if build.candidate == eager and session.device == "cuda":
            # Its process is warm now; what fails here fails where a candidate is compared with it.
            with suppress(WorkerFailure):
                profile(session, build, workload, eager=True)
        if self.is_model(build.candidate):
            return notes
        if session.device == "cpu":
            return (*notes, UNSEEN)
        now = profile(session, build, workload)
        before = profile(session, session.build(eager), workload, eager=True)
        if not before or not now:
            return (*notes, "whose kernels did the work is not known: no profile could be had (CUPTI)")
        found = shares.divide(now, before)
        if found.fault:
            raise WorkerFailure(Outcome.CHEATED, f"{found.fault} ({found.says})")
        return (*notes, found.says)

    def whose_gain(self, build: Build, workload: Workload, cache: Cache) -> str:
        """On a GPU by the profiles that the verdict's notes are from, or by that of timed calls where libraries do in these what they do in
        neither. Raises WorkerFailure."""
        if self.session.device == "cpu" or not self.libraries:
            return super().whose_gain(build, workload, cache)
        (eager,) = self.eager()
        now = profile(self.session, build, workload)
        before = profile(self.session, self.session.build(eager), workload, eager=True)
        if not now or not before:
            return ""
        timed, unknown = profile_timed_calls(self.session, build, workload, cache, self.session.build(eager))
        if unknown:
            return unknown
        if any(shares.by_library(name) for name in timed.keys() - now.keys() - before.keys()):
            found = shares.divide(timed, before)
            return found.doubt or found.fault
        return shares.divide(now, before).doubt

    def why_unclear(self) -> str:
        """Why results that are kept by an input's content would be right while a candidate is timed, or "".

        Inputs that only get_inputs() can draw come from few draws, by themselves or with other low bits. Two calls of one draw, with
        all else as new as it is in timed calls: where they have the same outputs, whoever has seen the draw need not compute.
        """
        session, problem = self.session, self.problem
        own = problem.spec.inputs[: len(self.description.inputs)]
        drawn_there = [one.name for one in own if one.values[0].startswith(("given:", "near:"))]
        if not drawn_there:
            return ""
        workload = next(one for one in session.suite() if one.timed)
        key = digest("by content", VERSION, problem.defines_right(), workload.label, session.facts.model_dump_json())
        look = lambda: Sentence(text=_by_content(session, problem, workload, drawn_there))  # noqa: E731
        return session.store.once("by content", key, Sentence, look).text


def _by_content(session: EvaluationSession, problem: Problem, workload: Workload, drawn_there: list[str]) -> str:
    values = distributions(session.spec, {})[0]
    one, other = (draw_inputs(session.spec, workload, values, {}, session.device) for _ in range(2))
    again = dict(one)
    for tensor in session.spec.inputs:
        if not is_persistent(tensor):
            one[tensor.name], again[tensor.name] = two_calls(session.spec, tensor, workload, session.device)
    right, apart = compute_expected(problem, workload, one, values), compute_expected(problem, workload, other, values)
    repeated = compute_expected(problem, workload, again, values)
    for name in problem.returned:
        tolerance = right[name].tolerance
        moves = (apart[name].value - right[name].value).abs() > tolerance
        differs = (repeated[name].value - right[name].value).abs() > tolerance
        if bool(moves.any()) and float(differs[moves].double().mean()) < DIFFERS:
            return (
                f"{name} follows from {', '.join(drawn_there)}, which only get_inputs() draws, so who keeps results by its content is "
                "quick while it is timed: a gain is not called FASTER"
            )
    return ""


def profile(session: EvaluationSession, build: Build, workload: Workload, *, eager: bool = False) -> dict[str, float]:
    """Microseconds by kernel name of a warm call: what a first one does besides is not what is divided, and after a pause a
    GPU's clocks are low.

    `eager` torch's is taken at once for the first workload of either suite, in one process.
    """

    def key(one: Workload) -> str:
        return digest("profile", build.candidate, one.label, session.facts.model_dump_json())

    if (kept := session.store.find_record("profile", key(workload), CallProfile)) is not None:
        return kept.kernels
    firsts = [*session.suite()[:1], *session.suite(held_out=True)[:1]] if eager else []
    wanted = {key(one): one for one in (workload, *firsts)}
    missing = [name for name in wanted if session.store.find_record("profile", name, CallProfile) is None]
    found = kernels_of_calls(session, build, [wanted[name] for name in missing], warm=True)
    for name, kernels in zip(missing, found, strict=True):
        session.store.keep("profile", name, CallProfile(kernels=kernels))
    return found[0]
