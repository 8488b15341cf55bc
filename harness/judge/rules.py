"""What judging asks of a kernel by the way it is defined, and whose kernels ran in a call."""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from harness import backends
from harness.checks.drawing import distributions
from harness.judge import whose_code
from harness.judge.pool import is_python_side
from harness.judge.session import map_buffers
from harness.problems import compiled_reference
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build, Cache, Check, Outcome
from harness.timing.sampling import Arm
from kernels.spec import Workload

if TYPE_CHECKING:
    import torch

    from harness.judge.session import EvaluationSession

WARM_CALLS = 16
"""Calls before the one that is profiled: as many for the eager module as for a candidate, since their times are compared."""


OWN_FAULT = re.compile(r"^the process |\(candidate\.py, line \d+\)")
"""Reasons of failures that are the candidate's: its process ended, or a line of its own raised."""
NEIGHBOURS = re.compile(r"^(void )?(produce|poison|evict|evict_last|evict_normally|consume)_kernel\(")
"""Names of what stands around a timed call (probes/company.cu)."""


class KernelRules:
    """The rules for a folder with a reference; ProblemRules (of_problems.py) are those for a PyTorch module.

    A session has one object of them (Evaluator.rules), so that nothing else asks what kind of kernel is judged.
    """

    judges_failed_builds = False
    """Whether the verdict on a source that did not compile needs the device: it is asked whether the problem is sound."""
    has_state = False
    """Whether a call leaves values that the next call reads, so that several calls in a row are checked."""
    draws_s = math.inf
    """Seconds after which no more fresh inputs are drawn for one candidate."""
    libraries = False
    """Whether a candidate may call the kernels of libraries."""

    def __init__(self, session: EvaluationSession) -> None:
        self.session = session

    def backend(self, text: str) -> ModuleType:
        """The toolchain for this source. Raises ValueError where none takes it."""
        return backends.for_source(text, self.session.device)

    @functools.cached_property
    def _compiled(self) -> frozenset[str]:
        return compiled_reference.sources(self.session.kernel)

    def is_model(self, candidate: str) -> bool:
        """Whether the source of that hash is what is right by itself: a module, eager or compiled, or a compiled reference."""
        return candidate in self._compiled

    def eager(self) -> tuple[str, ...]:
        """Hashes of the sources that are judged beside every candidate."""
        return ()

    def compiled_source(self, mode: str) -> str:
        """The source that stands for torch.compile of what is right, in that mode. Raises KernelError where there is none."""
        return compiled_reference.source(self.session.kernel, mode)

    def start(self, build: Build, *, company: Path, compilers: bool) -> Worker | None:
        """The candidate's process, where it is not started as others are. Raises WorkerFailure."""
        return None

    def start_beside(self, build: Build, *, company: Path) -> Worker | None:
        """What stands for the process of a source of the user's that is only checked, in a process that is there, or None."""
        return None

    def check_further(self, build: Build, workloads: tuple[Workload, ...]) -> tuple[list[Check], tuple[str, ...]]:
        """Checks behind those of every workload, and warnings. Raises WorkerFailure."""
        return [], ()

    def look_at_kernels(self, build: Build, workload: Workload) -> tuple[str, ...]:
        """Notes for the verdict about whose kernels worked. Raises WorkerFailure where kernels of a library did, by their names.

        Only a name that was found decides: where CUPTI is not there, nothing is known.
        """
        python = is_python_side(backends.get(build.backend))
        if self.session.device == "cuda" and python and not self.is_model(build.candidate):
            try:
                kernels_of_calls(self.session, build, [workload])  # the candidate may have called them from C
            except WorkerFailure as fault:
                if fault.outcome is Outcome.CHEATED:
                    raise
        return ()

    def initial_state(self, workload: Workload) -> dict[str, torch.Tensor]:
        """What the inputs that are a module's state are before any call, by name."""
        return {}

    def carried_s(self, workload: Workload) -> float:
        """Seconds that a call's copies of a module's state take at least, on a CPU."""
        return 0.0

    def name_fault(self, reason: str) -> str:
        """The reason with the user's names for what is wrong."""
        return reason

    def degenerate(self) -> tuple[str, ...]:
        """Sources that pass without computing, as notes."""
        return ()

    def whose_gain(self, build: Build, workload: Workload, cache: Cache) -> str:
        """Why a gain may be a library's, or "": on a CPU by where its threads stand in timed calls of that case, on a GPU by the names of what
        these run. Raises WorkerFailure."""
        if not is_python_side(backends.get(build.backend)):
            return ""
        if self.session.device == "cuda":
            return profile_timed_calls(self.session, build, workload, cache, None)[1]
        return whose_code.doubt(whose_code.watch(self.session, build, workload, cache), libraries=self.libraries)

    def why_unclear(self) -> str:
        """Why no gain may be called FASTER, or ""."""
        return ""


def kernels_of_calls(
    session: EvaluationSession, build: Build, workloads: Sequence[Workload], *, warm: bool = False
) -> list[dict[str, float]]:
    """Microseconds by kernel name of one call of each workload, {} without CUPTI; `warm`: of a call behind WARM_CALLS others.

    Raises WorkerFailure. The candidate's process ends with it, since CUPTI slows the process that it has watched.
    """
    try:
        return [_kernels_of_a_call(session, build, workload, warm) for workload in workloads]
    finally:
        session.pool.drop(build.candidate)


def profile_timed_calls(
    session: EvaluationSession, build: Build, workload: Workload, cache: Cache, control: Build | None
) -> tuple[dict[str, float], str]:
    """What `kernels_of_timed_calls` finds, and why it could not be found out by the candidate's fault, or "". Raises WorkerFailure where it cheats.

    Where no profile can be had here it decides nothing, and a notice says so: that of a call by itself has passed. So it is where `control`,
    eager torch, cannot be profiled either; without one where the candidate's process lives and the error is none of its source's lines.
    """
    try:
        return kernels_of_timed_calls(session, build, workload, cache), ""
    except WorkerFailure as fault:
        if fault.outcome is Outcome.CHEATED:
            raise
        reason = fault.reason[:200]
        its_own = fault.outcome is not Outcome.RUNTIME_ERROR or OWN_FAULT.search(fault.reason) is not None
    if control is not None:
        try:
            kernels_of_timed_calls(session, control, workload, cache)
            its_own = True
        except WorkerFailure:
            its_own = False
    if its_own:
        return {}, f"whose code did the work is not known: its timed calls could not be profiled: {reason}"
    notice = f"timed calls cannot be profiled on this machine, so whose kernels they run is not looked at: {reason}"
    session.notices = tuple(dict.fromkeys((*session.notices, notice)))
    return {}, ""


def kernels_of_timed_calls(
    session: EvaluationSession, build: Build, workload: Workload, cache: Cache
) -> dict[str, float]:
    """Microseconds by kernel name of the timed calls of that case, its neighbours' left out: {} without CUPTI. In the process that was
    timed, where it lives: it ends with it.

    A call that is profiled by itself can tell that it is. Raises WorkerFailure, where libraries may not work also for theirs.
    """
    try:
        arm = Arm("candidate", session.pool.get(build))
        comparison = session.open_comparison(workload, cache)
        session.pool.settle()
        comparison.prepare(arm)
        comparison.sample(arm, look=True)
        found = _read_kernels(arm.worker.request({"op": "profile"}))
    finally:
        session.pool.drop(build.candidate)
    return {name: spent / arm.calls for name, spent in found.items() if not NEIGHBOURS.search(name)}


def _kernels_of_a_call(session: EvaluationSession, build: Build, workload: Workload, warm: bool) -> dict[str, float]:
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, workload, 1)
    case = session.cases.get(workload, distributions(session.spec, {})[0], {})
    bench.write(0, case.inputs)
    for _ in range(WARM_CALLS if warm else 0):  # one by one: in flight together they may not fit
        worker.request(bench.message())
    return _read_kernels(worker.request(bench.message(kernels=True)))


def _read_kernels(answer: dict[str, Any]) -> dict[str, float]:
    """What a worker says of its kernels. Raises WorkerFailure for what is none."""
    try:
        return {str(name): float(spent) for name, spent in answer.get("kernels") or []}
    except (TypeError, ValueError):
        raise WorkerFailure(Outcome.CHEATED, "the worker answered outside the protocol: no list of kernels") from None
