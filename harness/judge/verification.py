"""Whether a candidate is right: the checks of every workload, of timed chains, and of sizes that nobody listed.

What a candidate does wrong is raised as WorkerFailure inside, and is a verdict or a reason outside.
"""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from harness.checks import properties
from harness.checks.buffers import GuardedBuffers
from harness.checks.cases import SPECIAL, Case, make_case
from harness.checks.correctness import failure, judge_several
from harness.checks.crossings import crossings
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.tolerance import compute_expected
from harness.judge import triton_kernels
from harness.judge.calls import collect_checks, judge_calls, keep_pace, shift_of
from harness.judge.draws import draw_again
from harness.judge.many_calls import check_many_calls
from harness.judge.own_baseline import errs_as_shipped, hands_on, try_beside_baseline
from harness.judge.rows import calls_in_a_row
from harness.judge.session import SMALL_BYTES, SPECIAL_BYTES, EvaluationSession, map_buffers
from harness.problems.degenerate import holes
from harness.processes.fork_server import PythonWorker
from harness.processes.worker import Worker, WorkerFailure
from harness.records import Build, Check, Outcome, Verdict
from kernels.catalog import Kernel, KernelError
from kernels.spec import Workload

STRESSED = 2
"""Smallest timed workloads of each dtype that are run behind a producer that triggers at once and stores late."""
STRESS_LOOKS = 4
EXACT_DRAWS = 16
OF_AN_OLD_PROCESS = 2
CHANCE_CALLS, CHANCE_LEAST, CHANCE_S = 64, 24, 0.5
"""Calls that are looked at together by what chance shows, at most and at least, and seconds from which on they are the least."""
ELSEWHERE_BYTES = 256 << 20
"""Of a workload's tensors up to which they are also tried elsewhere in memory, in three calls: 1.5 s at 66 MiB on two busy cores."""
NO_MORE_THREADS = "Resource temporarily unavailable"
"""What a C++ thread says that cannot be started."""


def verify_build(
    session: EvaluationSession, build: Build, workloads: tuple[Workload, ...], *, apart: bool = False
) -> Verdict:
    """The verdict on a build by those workloads: PASSED with checks and no timings, or what is wrong with it.

    `apart`: in a process of its own, whatever it is: what fails in that of others is asked once more.
    """
    start = time.perf_counter()
    made: list[Check] = []
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    outcome, reason, beside = Outcome.PASSED, "", False
    try:
        if not build.ok:
            raise WorkerFailure(Outcome.COMPILE_ERROR, first_error(build.log))
        session.pool.only(build.candidate)
        session.compile_ahead(build, workloads, beyond=partial(_crossed, session, workloads))
        beside = not apart and session.pool.begin_beside(build)
        worker = session.pool.get(build)
        _entries(session, worker, workloads)
        with session.pool.guarding_memory(build.candidate):
            for workload in workloads:
                session.say(f"checking {workload.label}")
                for check in checks(session, worker, workload, model=session.rules.is_model(build.candidate)):
                    if not check.passed and not hands_on(session, build, workload, check.name):
                        break  # what follows lay in memory that has been laid out anew
                    if not check.passed and check.error > 1 and errs_as_shipped(session):
                        return verify_build(session, build, workloads)
                    made.append(check)
                    if not check.passed:
                        raise WorkerFailure(*failure(check))
            if session.settings.exact_to and build.candidate != session.settings.exact_to:
                drawn = draw_again(session, build, session.build(session.settings.exact_to), EXACT_DRAWS)
                if drawn.draws is None or drawn.draws.equality != "bitwise":
                    reason = drawn.failure or "its outputs are not the baseline's in every bit (--exact)"
                    raise WorkerFailure(Outcome.INCORRECT, reason)
            if workloads in (session.suite(), session.suite(held_out=True)):
                made += _of_size_zero(session, build)
                made += _cross(session, build, workloads)
                made += _give_other_scalars(session, build, workloads)
            made += _of_each_configuration(session, build, workloads)
            if session.device == "cuda":
                made += _stress(session, build, workloads)
        warnings = (*worker.warnings, *session.cases.once(holes))
        further, said = session.rules.check_further(build, workloads)
        made, warnings = made + further, (*warnings, *said)
        notes = session.rules.look_at_kernels(build, workloads[0])
    except WorkerFailure as fault:
        outcome, reason = fault.outcome, session.rules.name_fault(fault.reason)
        session.pool.drop(build.candidate)
    finally:
        if beside:
            session.pool.drop(build.candidate)
    if beside and outcome is not Outcome.PASSED:
        return verify_build(session, build, workloads, apart=True)
    degenerate = session.rules.degenerate()
    return conclude(
        session, build, outcome, reason, checks=tuple(made), warnings=warnings, notes=notes, degenerate=degenerate,
        seconds=time.perf_counter() - start,
    )  # fmt: skip


def conclude(session: EvaluationSession, build: Build, outcome: Outcome, reason: str = "", **more: Any) -> Verdict:
    """The verdict on a build: where each begins. A failed one comes from it by `Verdict.failed` alone."""
    kernel, device = session.spec.name, session.facts.name
    return Verdict(
        candidate=build.candidate, kernel=kernel, device=device, build=build, outcome=outcome, reason=reason, **more
    )


def _stress(session: EvaluationSession, build: Build, workloads: tuple[Workload, ...]) -> list[Check]:
    """Every call of a chain in which each producer lets the kernel begin at once and stores 20 us later: one that was
    launched programmatically and does not wait for its inputs reads what was there before. Raises WorkerFailure."""
    found = []
    timed = [workload for workload in workloads if workload.timed]
    for dtype in dict.fromkeys(workload.dtype for workload in timed):
        for workload in [workload for workload in timed if workload.dtype == dtype][:STRESSED]:
            comparison = session.open_comparison(workload, "hot", "early")
            arm = session.make_arm("candidate", build)
            comparison.prepare(arm)
            if session.rules.is_model(build.candidate):
                keep_pace(session, workload, arm.pace_s)
            comparison.sample(arm)
            for slot in random.sample(comparison.called, min(STRESS_LOOKS, len(comparison.called))):
                try:
                    comparison.look(arm, slot)
                except WorkerFailure as fault:
                    reason = f"behind a producer that triggers before it stores, at {workload.label}: {fault.reason}"
                    raise WorkerFailure(Outcome.INCORRECT, reason) from None
            found.append(Check(workload=workload.label, name="early trigger", passed=True, error=arm.error))
    return found


def _of_each_configuration(session: EvaluationSession, build: Build, workloads: tuple[Workload, ...]) -> list[Check]:
    """One call with each configuration of Triton's tuner that was measured beside the chosen one: a user's process measures anew, and may take
    it. Raises WorkerFailure."""
    made: list[Check] = []
    if not triton_kernels.is_needed(build):
        return made
    for workload in triton_kernels.smallest_of_each_dtype(workloads, session.moved_bytes):
        case = session.cases.get(workload, distributions(session.spec, session.extra_values)[0], session.extra_values)
        worker = session.pool.get(build)
        bench = map_buffers(session, worker, workload, 1, wide=True)
        turns = triton_kernels.turns_of(worker.request(bench.message(), timeout_s=session.patience_s(workload)))
        for turn in turns:
            name = f"{case.name}, configuration {turn + 1} of {len(turns) + 1} that its tuner measured"
            for check in judge_calls(session, worker, bench, [replace(case, name=name)], turn=turn):
                if not check.passed:
                    raise WorkerFailure(*failure(check))
                made.append(check)
    return made


def _entries(session: EvaluationSession, worker: Worker, workloads: tuple[Workload, ...]) -> None:
    for dtype in {w.dtype for w in workloads}:
        if dtype not in worker.found:
            wanted = " or ".join(session.spec.entry_names(dtype))
            raise WorkerFailure(Outcome.MISSING_ENTRY, f'the source exports no extern "C" {wanted}')


def checks(
    session: EvaluationSession, worker: Worker, workload: Workload, *, everything: bool = True, model: bool = False
) -> Iterator[Check]:
    """The checks of one workload, one after another; only the first distribution without `everything`.

    `model`: it is a problem's own, and what a slow call takes is kept.
    """
    bench = map_buffers(session, worker, workload, session.slots(workload), wide=True)
    known = distributions(session.spec, session.extra_values)
    small = session.moved_bytes(workload) <= SMALL_BYTES
    chosen = known if everything else known[:1]
    if len(chosen) > 2 and not small:
        chosen = [known[0], known[1 + next(session.turns) % (len(known) - 1)]]
    cases = [session.cases.get(workload, values, session.extra_values) for values in chosen]
    if everything and len(cases) == 1 and _has_integers(session, workload):
        cases.append(make_case(session.kernel, workload, chosen[0], session.extra_values, session.device))
    for case in cases:  # each at the same addresses as the one before, the last one upon what that has left
        left = len(cases) > 1 and case is cases[-1]
        yield from judge_calls(session, worker, bench, [case], model=model, poison=not left)
    if len(cases) > 1 and small:
        yield from judge_calls(session, worker, bench, cases[:2])
    if everything and small:
        yield from _several(session, worker, bench, cases[0])
    if session.rules.has_state:
        yield from calls_in_a_row(
            session,
            worker,
            workload,
            chosen[0],
            long=everything and not model and (small or workload == min(session.suite(), key=session.moved_bytes)),
        )
        bench = map_buffers(session, worker, workload, session.slots(workload), wide=True)
    if everything and small and not model:
        yield from check_many_calls(session, worker, bench, cases)
        yield from _memory(session, worker, workload, cases[0])  # the last: it lays the arena out anew
    elif everything and not model:
        beside = [one for one in (*session.suite(), *session.suite(held_out=True)) if one.dtype == workload.dtype]
        if workload == min(beside, key=session.moved_bytes) and session.moved_bytes(workload) <= SPECIAL_BYTES:
            yield from check_many_calls(session, worker, bench, cases)  # where no workload is small
        if workload.label in session.special_at:
            yield from _specials(session, worker, workload)
        if sum(session.spec.tensor_bytes(tensor, workload) for tensor in session.spec.tensors) <= ELSEWHERE_BYTES:
            yield from _elsewhere(session, worker, workload, cases[0])


def _crossed(session: EvaluationSession, workloads: tuple[Workload, ...]) -> Iterator[Workload]:
    """Sizes that nobody listed and a whole suite is checked with (harness/checks/crossings.py), as far as the operation has them."""
    if session.kernel.properties is not None or workloads not in (session.suite(), session.suite(held_out=True)):
        return
    for workload in crossings(session.spec, session.device, session.dtypes, held_out=workloads != session.suite()):
        try:
            session.cases.get(workload, distributions(session.spec, {})[0], {})
        except KernelError:  # the operation has no such size
            continue
        yield workload


def _cross(session: EvaluationSession, build: Build, workloads: tuple[Workload, ...]) -> list[Check]:
    """Checks of sizes that nobody listed. Raises WorkerFailure for what the kernel's baseline gets right."""
    made: list[Check] = []
    for workload in _crossed(session, workloads):
        session.say(f"checking {workload.label}, which nobody listed")
        found, fault = try_beside_baseline(session, build, partial(_first_checks, session, workload))
        if fault is not None and NO_MORE_THREADS in fault.reason:
            session.pool.drop(build.candidate)  # of so many rows, each handed to a thread, which the box does not have
        elif fault is not None:
            raise WorkerFailure(fault.outcome, f"{fault.reason} (a size between or beyond the listed ones)")
        made += found
    return made


def _of_size_zero(session: EvaluationSession, build: Build) -> list[Check]:
    """Checks of a call without tokens, or whatever the spec's `zeros` say. Raises WorkerFailure."""
    made: list[Check] = []
    smallest = min(session.suite(), key=session.moved_bytes)
    for axis in session.spec.zeros:
        workload = smallest.model_copy(update={"axes": {**smallest.axes, axis: 0}, "timed": False})
        session.say(f"checking {workload.label}")
        values = distributions(session.spec, {})[0]
        inputs = draw_inputs(session.spec, workload, values, {}, session.device)
        session.compile_ahead(build, (workload,))
        worker = session.pool.get(build)
        bench = map_buffers(session, worker, workload, 1)
        bench.write(0, inputs)
        try:
            worker.request(bench.message(), timeout_s=session.call_s)
        except WorkerFailure as fault:
            raise WorkerFailure(
                fault.outcome, f"{fault.reason} at {workload.label}, where nothing is to be done"
            ) from None
        if all(output.numel() for output in bench.outputs(0).values()):
            made.append(
                bench.check_outputs(0, compute_expected(session.kernel, workload, inputs), f"{axis} of size zero")
            )
        made += [
            bench.check_inputs(0, inputs, f"inputs unchanged, {axis} of size zero"),
            bench.check_guards(f"guards, {axis} of size zero"),
        ]
        for check in made[-3:]:
            if not check.passed:
                raise WorkerFailure(*failure(check))
    return made


def _first_checks(session: EvaluationSession, workload: Workload, build: Build) -> Iterator[Check]:
    session.compile_ahead(build, (workload,))
    worker = session.pool.get(build)
    _entries(session, worker, (workload,))
    yield from checks(session, worker, workload, everything=False)


def check_once(session: EvaluationSession, build: Build, workload: Workload) -> WorkerFailure | None:
    """What is wrong with a call of the build at one size, inputs drawn from their first distribution; None if nothing is."""
    found, fault = collect_checks(_first_checks(session, workload, build))
    if found and not found[-1].passed and found[-1].error > 1 and errs_as_shipped(session, build):
        _, fault = collect_checks(_first_checks(session, workload, build))
    return fault


def _give_other_scalars(session: EvaluationSession, build: Build, workloads: tuple[Workload, ...]) -> list[Check]:
    """One call with other values of the scalars than the spec's: who exports the kernel's operator may give any.

    Raises WorkerFailure for what the kernel's own baseline gets right.
    """
    if (case := session.cases.other_scalars(min(workloads, key=session.moved_bytes))) is None:
        return []
    found, fault = try_beside_baseline(session, build, partial(_with_other_scalars, session, *case))
    if fault is not None:
        raise fault
    return found


def _with_other_scalars(session: EvaluationSession, kernel: Kernel, case: Case, build: Build) -> Iterator[Check]:
    session.compile_ahead(build, (case.workload,), kernel.spec)
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, case.workload, 1, spec=kernel.spec)
    yield from judge_calls(session, worker, bench, [case])


def _has_integers(session: EvaluationSession, workload: Workload) -> bool:
    return any("float" not in session.spec.dtype(tensor, workload) for tensor in session.spec.outputs)


def _memory(session: EvaluationSession, worker: Worker, workload: Workload, case: Case) -> Iterator[Check]:
    """Tensors elsewhere, and at last values that are no numbers."""
    yield from _elsewhere(session, worker, workload, case)
    yield from _specials(session, worker, workload, shift=shift_of(session, worker))
    yield from _specials(session, worker, workload)  # and where a vector load may take its other way


def _elsewhere(session: EvaluationSession, worker: Worker, workload: Workload, case: Case) -> Iterator[Check]:
    """Tensors that begin behind an alignment; on a CPU between pages without access, too: who stores whole lines of large tensors alone, or reads
    behind these, does so at no small size."""
    bench = map_buffers(session, worker, workload, 1, wide=True, shift=shift_of(session, worker))
    yield from judge_calls(session, worker, bench, [replace(case, name=f"{case.name}, tensors that begin anywhere")])
    if session.device == "cpu" and not isinstance(worker, PythonWorker):
        yield from _fenced(session, worker, bench, case)


def _specials(session: EvaluationSession, worker: Worker, workload: Workload, **how: Any) -> Iterator[Check]:
    """Values that are no finite numbers; `how`: as Layout takes it."""
    bench = map_buffers(session, worker, workload, 1, wide=True, **how)
    for name in SPECIAL:
        special = session.cases.special(name, workload, session.extra_values) if name in session.asks else None
        if special is not None:
            yield from judge_calls(session, worker, bench, [special])


def _fenced(session: EvaluationSession, worker: Worker, bench: GuardedBuffers, case: Case) -> Iterator[Check]:
    """On a CPU: tensors that end, then begin, beside pages without access; inputs cannot be written."""
    workload = bench.layout.workload
    tensors = [[bench.layout.sizes[t.name], t.role == "input"] for t in session.spec.tensors]
    for end, where in ((True, "end"), (False, "begin")):
        named = replace(case, name=f"tensors that {where} where memory does")
        try:
            yield from judge_calls(session, worker, bench, [named], fence={"end": end, "tensors": tensors})
        except WorkerFailure as fault:
            if fault.outcome is not Outcome.RUNTIME_ERROR:
                raise
            said = f"reads or writes beyond a tensor, or writes to an input ({named.name}): {fault.reason}"
            raise WorkerFailure(Outcome.INCORRECT, f"{said} at {workload.label}") from None


def checks_of_an_old_process(
    session: EvaluationSession, build: Build, workloads: tuple[Workload, ...]
) -> Iterator[Check]:
    """Once more, in the process that was timed: the small workloads, each with fresh inputs of some of its distributions."""
    known, worker = distributions(session.spec, session.extra_values), session.pool.get(build)
    for workload in workloads:
        if session.moved_bytes(workload) <= SMALL_BYTES:
            bench = map_buffers(session, worker, workload, 1)
            for values in random.sample(known, min(OF_AN_OLD_PROCESS, len(known))):
                case = make_case(session.kernel, workload, values, session.extra_values, session.device)
                for check in judge_calls(session, worker, bench, [case]):
                    yield check.model_copy(update={"name": f"{check.name}, after it was timed"})


def _several(session: EvaluationSession, worker: Worker, bench: GuardedBuffers, case: Case) -> Iterator[Check]:
    """The check of several calls together, where the kernel's properties.py asks for one."""
    calls = properties.several(session.kernel, case.workload, case.inputs)
    outputs: list[dict] = []
    for inputs in calls:
        bench.write(0, inputs)
        worker.request(bench.message(), timeout_s=session.call_s)
        outputs.append({name: values.clone() for name, values in bench.outputs(0).items()})
    if calls:
        violated = judge_several(session.kernel, case.workload, calls, outputs)
        name = f"{len(calls)} calls together"
        yield Check(workload=case.workload.label, name=name, passed=not violated, message=violated)
    elif properties.looks_at_timed_calls(session.kernel):
        yield from _what_chance_shows(session, worker, bench, case.workload, case.name)


def _what_chance_shows(
    session: EvaluationSession, worker: Worker, bench: GuardedBuffers, workload: Workload, values: str
) -> Iterator[Check]:
    """The check of calls of other inputs by what is looked at of timed ones, where nobody arranged calls and none may be timed: who picks by chance
    at the sizes that are timed may do otherwise at a few rows, or at rows that are long."""
    seen, secret, began = list[Any](), random.getrandbits(64), time.perf_counter()
    while len(seen) < CHANCE_CALLS and (len(seen) < CHANCE_LEAST or time.perf_counter() - began < CHANCE_S):
        inputs = draw_inputs(session.spec, workload, values, session.extra_values, session.device)
        bench.write(0, inputs)
        worker.request(bench.message(), timeout_s=session.call_s)
        check = bench.check_outputs(
            0, compute_expected(session.kernel, workload, inputs, values), f"{values}, drawn anew"
        )
        if not check.passed:
            yield check
            return
        seen.append(properties.evidence(session.kernel, workload, inputs, bench.outputs(0), secret))
        if not any(part.numel() for part in seen[0]):
            return  # of a node whose neighbours are few nodes nothing says which of them were picked
    unlikely = properties.unlikely(session.kernel, workload, seen)
    yield Check(workload=workload.label, name=f"{len(seen)} calls together", passed=not unlikely, message=unlikely)


def first_error(log: str) -> str:
    """The compiler's or the linker's first complaint, one line, for a reason."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    said = ("error", "undefined reference to", "cannot find -l", "multiple definition of")
    found = (line for line in lines if any(one in line.lower() for one in said))
    return next(found, lines[0] if lines else "the compiler failed")
