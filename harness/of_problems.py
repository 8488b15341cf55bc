"""What the Evaluator does for problems only: whose kernels worked, whether the problem is sound, torch.compile beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from harness import degenerate as degeneracy
from harness import shares
from harness.correctness import Bench, Layout, distributions
from harness.device import generator
from harness.engines.process import WorkerFailure
from harness.problems import Problem
from harness.records import Build, Outcome, Verdict
from harness.rig import VERSION
from harness.store import digest
from kernels.spec import Frozen, Workload

if TYPE_CHECKING:
    from harness.evaluate import Evaluator
    from harness.rig import Rig

WARM_CALLS = 16
"""Before one is profiled, as many for the eager module as for a candidate, whose times are set against each other."""
UNSEEN = "whose kernels did the work is not checked: on a CPU no profile tells them apart"


class Profile(Frozen):
    """Microseconds of device time of one call, by kernel name."""

    kernels: dict[str, float]


def degenerate(rig: Rig, problem: Problem) -> tuple[str, ...]:
    """What passes KernelBench's check on this problem without computing; found once, at the largest size that is timed.

    Not asked anew where a tester adds workloads: the question is about the problem as it is shipped.
    """
    workload = [one for one in rig.suite() if one.timed][-1]
    key = digest("degenerate", VERSION, problem.defines_right(), workload.label, rig.facts.model_dump_json())

    def look() -> degeneracy.Degenerate:
        rig.say("looking whether the problem can be solved without computing")
        return degeneracy.look(problem, workload, rig.device)

    return rig.store.once("degenerate", key, degeneracy.Degenerate, look).passes


def look_at_kernels(rig: Rig, problem: Problem, build: Build, workload: Workload) -> tuple[str, ...]:
    """Notes for the verdict. Raises WorkerFailure where a GPU's profile shows that the candidate's own kernels do nothing."""
    notes = (problem.says(),)
    if build.candidate in problem.sources() or rig.own_kernels == "all":
        return notes
    if rig.device == "cpu":
        return (*notes, UNSEEN)
    eager = rig.build(rig.store.put(problem.text))
    before, now = (profile(rig, one, workload) for one in (eager, build))
    if not before or not now:
        return (*notes, "whose kernels did the work is not known: no profile could be had (CUPTI)")
    found = shares.divide(now, before)
    if found.fault:
        raise WorkerFailure(Outcome.CHEATED, f"{found.fault} ({found.says})")
    return (*notes, found.says)


def profile(rig: Rig, build: Build, workload: Workload) -> dict[str, float]:
    """Of a warm call: what a first one does besides is not what is divided, and after a pause a GPU's clocks are low."""
    key = digest("profile", build.candidate, workload.label, rig.facts.model_dump_json())
    return rig.store.once(
        "profile", key, Profile, lambda: Profile(kernels=kernels_of_a_call(rig, build, workload, warm=True))
    ).kernels


def kernels_of_a_call(rig: Rig, build: Build, workload: Workload, *, warm: bool = False) -> dict[str, float]:
    """Microseconds by kernel name, {} without CUPTI; `warm`: of a call behind WARM_CALLS others. Raises WorkerFailure.

    In a process of its own, since CUPTI slows the process that it has watched.
    """
    layout = Layout(rig.spec, workload, 1)
    arena = rig.memory(layout.size)
    case = rig.cases.get(workload, distributions(rig.spec, {})[0], {})
    Bench(rig.spec, arena, layout, generator(rig.device)).write(0, case.inputs)
    rig.synchronize()
    message = {"op": "call", "dtype": workload.dtype, "calls": [layout.arguments(arena, 0)], "shapes": layout.shapes()}
    worker = rig.start(build)
    try:
        worker.map(arena)
        for _ in range(WARM_CALLS if warm else 0):  # one by one: in flight together they may not fit
            worker.request(message)
        answer = worker.request(message | {"kernels": True})
    finally:
        worker.close()
    try:
        return {str(name): float(spent) for name, spent in answer.get("kernels") or []}
    except (TypeError, ValueError):
        raise WorkerFailure(Outcome.CHEATED, "the worker answered outside the protocol: no list of kernels") from None


def measure_against(evaluator: Evaluator, problem: Problem, verdict: Verdict, mode: str) -> Verdict:
    """The verdict with its times against torch.compile's in `against`, or with a note of why there are none.

    `mode`: a key of problems.COMPILE_MODES.
    """
    if not verdict.passed:
        return verdict
    compiled = evaluator.store.put(problem.compiled(mode))
    evaluator.say(f"timing against torch.compile ({mode})")
    built = evaluator.build(compiled)
    first = evaluator.verify(built)
    if not first.passed:
        note = f"torch.compile ({mode}) is no baseline here: {first.outcome}: {' '.join(first.reason.split())[:300]}"
        return verdict.model_copy(update={"notes": (*verdict.notes, note)})
    untimed = verdict.model_copy(update={"timings": (), "suite": None, "suite_incumbent": None, "against": {}})
    try:
        timed = evaluator.measure(untimed, baseline=compiled)
    except RuntimeError as fault:
        return verdict.model_copy(update={"notes": (*verdict.notes, f"torch.compile ({mode}): {fault}")})
    if not timed.passed or timed.suite is None:
        return timed
    return verdict.model_copy(update={"against": {**verdict.against, mode: timed.suite}})
