"""What the Evaluator does for problems only: whose kernels worked, whether the problem is sound, torch.compile beside it."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from harness.checks.correctness import compute_expected, distributions, draw_inputs
from harness.judge import shares
from harness.judge.session import VERSION, map_buffers
from harness.problems import degenerate as degeneracy
from harness.problems.pytorch import Problem
from harness.processes.worker import WorkerFailure
from harness.records import Build, Outcome
from harness.store import digest
from harness.timing.neighbours import is_persistent, two_calls
from kernels.spec import Frozen, Workload

if TYPE_CHECKING:
    from harness.judge.session import EvaluationSession

WARM_CALLS = 16
"""Before one is profiled, as many for the eager module as for a candidate, whose times are set against each other."""
UNSEEN = "whose kernels did the work is not checked: on a CPU no profile tells them apart"


DIFFERS = 0.5
"""Of an output's elements that another draw changes, in two calls of one draw: below that it is known from the draw."""


class Sentence(Frozen):
    text: str


class CallProfile(Frozen):
    """Microseconds of device time of one call, by kernel name."""

    kernels: dict[str, float]


def degenerate(session: EvaluationSession, problem: Problem) -> tuple[str, ...]:
    """What passes KernelBench's check on this problem without computing; found once, at the largest size that is timed.

    Not asked anew where a tester adds workloads: the question is about the problem as it is shipped.
    """
    workload = [one for one in session.suite() if one.timed][-1]
    key = digest("degenerate", VERSION, problem.defines_right(), workload.label, session.facts.model_dump_json())

    def look() -> degeneracy.Degenerate:
        session.say("looking whether the problem can be solved without computing")
        return degeneracy.look(problem, workload, session.device)

    return session.store.once("degenerate", key, degeneracy.Degenerate, look).passes


def look_at_kernels(session: EvaluationSession, problem: Problem, build: Build, workload: Workload) -> tuple[str, ...]:
    """Notes for the verdict. Raises WorkerFailure where a GPU's profile shows that the candidate's own kernels do nothing.

    On a GPU the candidate's process, and eager torch's, ends with it.
    """
    notes = (problem.says(),)
    if session.settings.own_kernels == "all":
        return notes
    eager = session.store.put(problem.text)
    if build.candidate == eager and session.device == "cuda":
        # Its process is warm now; what fails here fails where a candidate is compared with it.
        with suppress(WorkerFailure):
            profile(session, build, workload, eager=True)
    if build.candidate in problem.sources():
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


def by_content(session: EvaluationSession, problem: Problem) -> str:
    """Why results that are kept by an input's content would be right while a candidate is timed, or "".

    Inputs that only get_inputs() can draw come from few draws, by themselves or with other low bits. Two calls of one draw, with
    all else as new as it is in timed calls: where they have the same outputs, whoever has seen the draw need not compute.
    """
    assert problem.description is not None
    spec = problem.spec
    own = spec.inputs[: len(problem.description.inputs)]
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
    """Of a warm call: what a first one does besides is not what is divided, and after a pause a GPU's clocks are low.

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


def kernels_of_calls(
    session: EvaluationSession, build: Build, workloads: Sequence[Workload], *, warm: bool = False
) -> list[dict[str, float]]:
    """Of one call of each: microseconds by kernel name, {} without CUPTI; `warm`: of a call behind WARM_CALLS others.

    Raises WorkerFailure. The candidate's process ends with it, since CUPTI slows the process that it has watched.
    """
    try:
        return [_kernels_of_a_call(session, build, workload, warm) for workload in workloads]
    finally:
        session.pool.drop(build.candidate)


def _kernels_of_a_call(session: EvaluationSession, build: Build, workload: Workload, warm: bool) -> dict[str, float]:
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, workload, 1)
    case = session.cases.get(workload, distributions(session.spec, {})[0], {})
    bench.write(0, case.inputs)
    for _ in range(WARM_CALLS if warm else 0):  # one by one: in flight together they may not fit
        worker.request(bench.message())
    answer = worker.request(bench.message(kernels=True))
    try:
        return {str(name): float(spent) for name, spent in answer.get("kernels") or []}
    except (TypeError, ValueError):
        raise WorkerFailure(Outcome.CHEATED, "the worker answered outside the protocol: no list of kernels") from None
