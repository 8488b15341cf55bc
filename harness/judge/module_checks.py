"""What a network does with a module beside calling it: several of one class, weights that are loaded, inputs of other layouts."""

from __future__ import annotations

import secrets
import time
from dataclasses import replace

from harness.checks.cases import Case
from harness.checks.drawing import distributions
from harness.checks.expected import Right
from harness.checks.tolerance import compute_expected
from harness.farside.problem import CONSTANT, EVALUATING, RECORDING, VARIED
from harness.judge.calls import collect_checks, judge_calls
from harness.judge.rows import calls_in_a_row
from harness.judge.session import EvaluationSession, map_buffers
from harness.problems.pytorch import Problem
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build, Check, Outcome
from kernels.catalog import KernelError
from kernels.spec import Workload

LOADED_LATER = "weights that are loaded into it (load_state_dict) after it was made change nothing, or not all: it keeps what it made of the first"
COPIED = "a deep copy of it (copy.deepcopy, as torch.nn.TransformerEncoder makes of its layers) answers by the weights of the first one, or the first one by the copy's"
UNFOLLOWED = "weights that begin as a constant (a bias of zeros, a norm's weight of ones) change nothing, or not all, whatever they are: it leaves them out"
MODES = {
    EVALUATING: "in evaluation mode, behind eval(), it answers otherwise than Model, or not at all",
    RECORDING: "where gradients are recorded, outside torch.no_grad(), it answers otherwise than Model, or not at all",
}
MODULES, MODULES_S = 64, 0.3
"""Modules beside the second that are made and called in its process, and seconds that they may take."""
CONTIGUOUS = "inputs that are not contiguous in memory, such as a transposed tensor, give a wrong answer or end the process: it takes them for contiguous"


def check_second_module(
    session: EvaluationSession, problem: Problem, build: Build, workloads: tuple[Workload, ...]
) -> tuple[list[Check], tuple[str, ...]]:
    """A second module of the same class with weights of its own in the same process, one behind some more, and then the first one again,
    with calls of another between its own where it keeps state: a network has many. At last the first one with the second one's weights,
    as who loads a checkpoint into it has it, and so a copy of it: who keeps what it made of its weights is warned of, since KernelBench
    does not ask for that. Raises WorkerFailure for what one module has of the other."""
    workload = min(workloads, key=session.moved_bytes)
    case = session.cases.get(workload, distributions(session.spec, session.extra_values)[0], session.extra_values)
    worker, seed = session.pool.get(build), 1 + secrets.randbits(30)
    made: list[Check] = []
    bench = map_buffers(session, worker, workload, 1)

    def judge(seed: int, name: str) -> Right:
        with problem.another_instance(seed):
            right = compute_expected(problem, workload, case.inputs, case.name)
            other = Case(workload, f"{case.name}, {name}", case.inputs, right)
            made.extend(judge_calls(session, worker, bench, [other], instance=seed))
        return right

    judge(seed, "a second module")
    others, began = 0, time.perf_counter()
    while others < MODULES and time.perf_counter() - began < MODULES_S:
        worker.request(bench.message(instance=1 + secrets.randbits(30)), timeout_s=session.call_s)
        others += 1
    seed = 1 + secrets.randbits(30)
    right = judge(seed, f"a module behind {others + 2} others")
    first = replace(case, name=f"{case.name}, the first module behind a second one")
    made += list(judge_calls(session, worker, bench, [first]))
    if session.rules.has_state:
        made += calls_in_a_row(session, worker, workload, case.name, long=False, beside=seed)
        bench = map_buffers(session, worker, workload, 1)
    if (fault := collect_checks(made)[1]) is not None:
        raise fault
    bench.write(0, case.inputs)
    answer = worker.request(bench.message(weights=seed), timeout_s=session.call_s)
    if answer.get("lacking"):
        return made, (
            f"Model's weights cannot be loaded into it: it has no {str(answer['lacking'])[:100]} of that shape",
        )
    with problem.another_instance(seed):  # which is asked again before anything is called wrong
        follows = bench.check_outputs(0, right, "").passed
    said = () if follows else (LOADED_LATER,)
    if follows and not _copy_follows(session, problem, worker, case, seed, right):
        said = (COPIED,)
    return made, said


def leaves_constants_out(
    session: EvaluationSession, problem: Problem, build: Build, workload: Workload
) -> tuple[str, ...]:
    """A warning for who leaves out weights that begin as a constant."""
    case = session.cases.get(workload, distributions(session.spec, session.extra_values)[0], session.extra_values)
    worker = session.pool.get(build)
    left_out = not _follows(session, problem, worker, case, CONSTANT) and _follows(
        session, problem, worker, case, VARIED
    )
    return (UNFOLLOWED,) if left_out else ()


def _copy_follows(
    session: EvaluationSession, problem: Problem, worker: Worker, case: Case, seed: int, right: Right
) -> bool:
    """Whether a deep copy of the module has weights of its own, and the module keeps its own beside it; where it cannot be copied, too, which
    who copies it is told."""
    bench = map_buffers(session, worker, case.workload, 1)
    bench.write(0, case.inputs)
    answer = worker.request(bench.message(weights=seed, copied=True), timeout_s=session.call_s)
    if answer.get("lacking"):
        return True
    with problem.another_instance(seed):
        if not bench.check_outputs(0, right, "").passed:
            return False
    bench.write(0, case.inputs)
    worker.request(bench.message(weights=seed, copied=True, beside_copy=True), timeout_s=session.call_s)
    return bench.check_outputs(0, case.expected, "").passed


def _follows(session: EvaluationSession, problem: Problem, worker: Worker, case: Case, which: str) -> bool:
    """Whether a new module is right with such weights moved before its first call; where Model has none, too, or does not take them.

    Who makes something of its weights when it is made follows neither kind: of that LOADED_LATER is said.
    """
    seed = 1 + secrets.randbits(30)
    bench = map_buffers(session, worker, case.workload, 1)
    bench.write(0, case.inputs)
    with problem.another_instance(seed, which):
        try:
            right = compute_expected(problem, case.workload, case.inputs, case.name)
        except (KernelError, WorkerFailure):
            return True
        answer = worker.request(bench.message(instance=seed, moved=which), timeout_s=session.call_s)
        return bool(answer.get("lacks_moved")) or bench.check_outputs(0, right, "").passed


def takes_strides(session: EvaluationSession, build: Build, workload: Workload) -> bool:
    """Whether a module is right, or says that it is not, for inputs that are not contiguous. Its process may end with it."""
    case = session.cases.get(workload, distributions(session.spec, session.extra_values)[0], session.extra_values)
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, workload, 1)
    bench.write(0, case.inputs)
    try:
        worker.request(bench.message(strided=True), timeout_s=session.call_s)
    except WorkerFailure as fault:
        session.pool.drop(build.candidate)
        return not fault.reason.startswith("the process ")  # an error that it raises says so
    return bench.check_outputs(0, case.expected, "").passed


def name_modes_unlike_models(
    session: EvaluationSession, problem: Problem, build: Build, workload: Workload
) -> tuple[str, ...]:
    """Warnings for the modes in which a module answers otherwise than Model, or raises where Model does not. Its process may end with it."""
    case = session.cases.get(workload, distributions(session.spec, session.extra_values)[0], session.extra_values)
    said: list[str] = []
    for mode, sentence in MODES.items():
        try:
            with problem.entering(mode):
                right = compute_expected(problem, workload, case.inputs, case.name)
        except (KernelError, WorkerFailure):  # nobody calls it so
            continue
        worker = session.pool.get(build)
        bench = map_buffers(session, worker, workload, 1)
        bench.write(0, case.inputs)
        try:
            worker.request(bench.message(mode=mode), timeout_s=session.call_s)
        except WorkerFailure:
            session.pool.drop(build.candidate)
            said.append(sentence)
            continue
        with problem.entering(mode):  # which is asked again before anything is called wrong
            said += [] if bench.check_outputs(0, right, "").passed else [sentence]
    return tuple(said)


def check_initial_state(session: EvaluationSession, problem: Problem, build: Build, workload: Workload) -> Check:
    """Whether a module begins in the state in which Model begins: judged calls are given theirs. Raises WorkerFailure."""
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, workload, 1)
    worker.request(bench.message(constructed=problem.seed), timeout_s=session.call_s)
    said = problem.compare_initial_state(workload, bench.outputs(0))
    if said:
        raise WorkerFailure(Outcome.INCORRECT, said)
    return Check(workload=workload.label, name="state before any call", passed=True)
