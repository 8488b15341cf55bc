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
from harness.store import digest
from kernels.spec import Frozen, Workload

if TYPE_CHECKING:
    from harness.evaluate import Evaluator

UNSEEN = "whose kernels did the work is not checked: on a CPU no profile tells them apart"


class Profile(Frozen):
    """Microseconds of device time of one call, by kernel name."""

    kernels: dict[str, float]


def degenerate(evaluator: Evaluator, problem: Problem) -> tuple[str, ...]:
    """What passes KernelBench's check on this problem without computing; found once, at the size that agents see."""
    key = evaluator._key("degenerate")
    found = evaluator.store.kept("degenerate", key, degeneracy.Degenerate)
    if found is None:
        evaluator.say("looking whether the problem can be solved without computing")
        found = degeneracy.look(problem, evaluator.suite()[-1], evaluator.device)
        evaluator.store.keep("degenerate", key, found)
    return found.passes


def look_at_kernels(evaluator: Evaluator, problem: Problem, build: Build, workload: Workload) -> tuple[str, ...]:
    """Notes for the verdict. Raises WorkerFailure where a GPU's profile shows that the candidate's own kernels do nothing."""
    notes = (problem.says(),)
    if build.candidate in problem.sources() or evaluator.own_kernels == "all":
        return notes
    if evaluator.device == "cpu":
        return (*notes, UNSEEN)
    eager = evaluator.build(evaluator.store.put(problem.text))
    before, now = (profile(evaluator, one, workload) for one in (eager, build))
    if not before or not now:
        return (*notes, "whose kernels did the work is not known: no profile could be had (CUPTI)")
    found = shares.divide(now, before)
    if found.fault:
        raise WorkerFailure(Outcome.CHEATED, f"{found.fault} ({found.says})")
    return (*notes, found.says)


def profile(evaluator: Evaluator, build: Build, workload: Workload) -> dict[str, float]:
    """Of the second call in a process of its own, since CUPTI slows the process that it has watched."""
    key = digest("profile", build.candidate, workload.label, evaluator.facts.model_dump_json())
    kept = evaluator.store.kept("profile", key, Profile)
    if kept is not None:
        return kept.kernels
    layout = Layout(evaluator.spec, workload, 1)
    arena = evaluator.memory(layout.size)
    case = evaluator._cases.get(workload, distributions(evaluator.spec, {})[0], {})
    Bench(evaluator.spec, arena, layout, generator(evaluator.device)).write(0, case.inputs)
    evaluator._synchronize()
    message = {"op": "call", "dtype": workload.dtype, "calls": [layout.arguments(arena, 0)], "shapes": layout.shapes()}
    worker = evaluator.start(build)
    try:
        worker.map(arena)
        worker.request(message)  # what a first call does besides is not what is divided
        answer = worker.request(message | {"kernels": True})
    finally:
        worker.close()
    found = Profile(kernels={str(name): float(spent) for name, spent in answer.get("kernels") or []})
    evaluator.store.keep("profile", key, found)
    return found.kernels


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
