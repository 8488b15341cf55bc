"""Whether a candidate is right: the checks of every workload, of timed chains, and of fresh draws.

What a candidate does wrong is raised as WorkerFailure inside, and is a verdict or a reason outside.
"""

from __future__ import annotations

import math
import os
import random
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from harness.checks import properties, shipped
from harness.checks.buffers import GuardedBuffers
from harness.checks.cases import NANS, SPECIAL, Case, make_case
from harness.checks.correctness import failure, judge_several
from harness.checks.crossings import crossings
from harness.checks.drawing import distributions, draw_inputs
from harness.checks.tolerance import compute_expected
from harness.farside.problem import CONSTANT, VARIED
from harness.judge.rows import MANY, PACED, calls_in_a_row
from harness.judge.session import SMALL_BYTES, SPECIAL_BYTES, EvaluationSession, MissingTool, map_buffers
from harness.problems.degenerate import holes
from harness.problems.pytorch import Problem
from harness.processes.fork_server import PythonWorker
from harness.processes.worker import Worker, WorkerFailure, time_request
from harness.records import Build, Check, Draws, Launch, Outcome, Verdict
from harness.timing.sampling import read_seconds
from kernels.catalog import Kernel, KernelError
from kernels.spec import DTYPE_BYTES, Frozen, Workload

STRESSED = 2
"""Smallest timed workloads of each dtype that are run behind a producer that triggers at once and stores late."""
STRESS_LOOKS = 4
EXACT_DRAWS = 16
DRAWN_BYTES = {"cuda": 16 << 20, "cpu": 1 << 20}
"""Bytes moved by a call, by device, above which a workload is left to the checks; where all are larger, the smallest
is drawn."""
FEWEST_DRAWS = 50
"""Fresh inputs that a slow problem is given in any case."""
SLOW_CALL_S = 0.01
"""Seconds of a Model's call by our clock from which on they count as what it takes: of shorter ones the pipe takes
too much."""
OF_AN_OLD_PROCESS = 2


LOADED_LATER = "weights that are loaded into it (load_state_dict) after it was made change nothing, or not all: it keeps what it made of the first"
UNFOLLOWED = "weights that begin as a constant (a bias of zeros, a norm's weight of ones) change nothing, or not all, whatever they are: it leaves them out"
CONTIGUOUS = "inputs that are not contiguous in memory, such as a transposed tensor, give a wrong answer or end the process: it takes them for contiguous"
GPU_SHIFT = 16
"""Bytes that a tensor is moved behind an alignment on a GPU, where vector loads of so many are taken for granted. On
a CPU it is moved by one element."""
TORCH_SHIFT = 64
"""Bytes of the same for what is called with torch's tensors on a CPU: torch aligns so, and engines' vector stores take it for granted."""
QUICK_S, MANY_S = 50e-6, 0.25
"""Seconds of a call up to which a kernel makes MANY of them, and that the calls of a slower one may take."""
SHIPPED_BYTES = 64 << 20
"""Bytes of a call up to which a workload says what the baseline errs by."""
LEAK_LEAST, LEAK_A_CALL = 64 << 20, 16 << 10
"""Bytes that a process may take in all, and for each call, while it makes many calls."""
LEAK_SERIES, LEAK_ALIKE = {"cuda": 3, "cpu": 2}, 1.25
"""Series of calls that must all take too much before a process leaks, and the largest quotient of what two of them take a call,
where the memory is not its own alone."""


class Drawn(Frozen):
    """What `draw_again` found; `failure`: what was wrong, or ""."""

    draws: Draws | None = None
    launch: Launch | None = None
    failure: str = ""


def verify_build(session: EvaluationSession, build: Build, workloads: tuple[Workload, ...]) -> Verdict:
    """The verdict on a build by those workloads: PASSED with checks and no timings, or what is wrong with it."""
    start = time.perf_counter()
    made: list[Check] = []
    warnings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    outcome, reason = Outcome.PASSED, ""
    try:
        if not build.ok:
            raise WorkerFailure(Outcome.COMPILE_ERROR, first_error(build.log))
        session.pool.only(build.candidate)
        session.compile_ahead(build, workloads, beyond=partial(_crossed, session, workloads))
        worker = session.pool.get(build)
        _entries(session, worker, workloads)
        with session.pool.guarding_memory(build.candidate):
            for workload in workloads:
                session.say(f"checking {workload.label}")
                for check in checks(session, worker, workload, model=session.rules.is_model(build.candidate)):
                    if not check.passed and not _hands_on(session, build, workload, check.name):
                        break  # what follows lay in memory that has been laid out anew
                    if not check.passed and check.error > 1 and _errs_as_shipped(session):
                        return verify_build(session, build, workloads)
                    made.append(check)
                    if not check.passed:
                        raise WorkerFailure(*failure(check))
            if session.settings.exact_to and build.candidate != session.settings.exact_to:
                drawn = draws(session, build, session.build(session.settings.exact_to), EXACT_DRAWS)
                if drawn.draws is None or drawn.draws.equality != "bitwise":
                    reason = drawn.failure or "its outputs are not the baseline's in every bit (--exact)"
                    raise WorkerFailure(Outcome.INCORRECT, reason)
            if workloads in (session.suite(), session.suite(held_out=True)):
                made += _of_size_zero(session, build)
                made += _cross(session, build, workloads)
                made += _give_other_scalars(session, build, workloads)
            if session.device == "cuda":
                made += _stress(session, build, workloads)
        warnings = (*worker.warnings, *session.cases.once(holes))
        further, said = session.rules.check_further(build, workloads)
        made, warnings = made + further, (*warnings, *said)
        notes = session.rules.look_at_kernels(build, workloads[0])
    except WorkerFailure as fault:
        outcome, reason = fault.outcome, session.rules.name_fault(fault.reason)
        session.pool.drop(build.candidate)
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
                _took(session, workload, arm.pace_s)
            comparison.sample(arm)
            for slot in random.sample(comparison.called, min(STRESS_LOOKS, len(comparison.called))):
                try:
                    comparison.look(arm, slot)
                except WorkerFailure as fault:
                    reason = f"behind a producer that triggers before it stores, at {workload.label}: {fault.reason}"
                    raise WorkerFailure(Outcome.INCORRECT, reason) from None
            found.append(Check(workload=workload.label, name="early trigger", passed=True, error=arm.error))
    return found


def _took(session: EvaluationSession, workload: Workload, seconds: float) -> None:
    """What a call of a problem's Model took."""
    session.paces_us[workload.label] = min(seconds * 1e6, session.paces_us.get(workload.label, math.inf))


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
    chosen = known if small or len(known) <= 2 else [known[0], random.choice(known[1:])]
    chosen = chosen if everything else known[:1]
    cases = [session.cases.get(workload, values, session.extra_values) for values in chosen]
    if everything and len(cases) == 1 and _has_integers(session, workload):
        cases.append(make_case(session.kernel, workload, chosen[0], session.extra_values, session.device))
    for case in cases:  # each at the same addresses as the one before, the last one upon what that has left
        left = len(cases) > 1 and case is cases[-1]
        yield from _call(session, worker, bench, [case], model=model, poison=not left)
    if len(cases) > 1 and small:
        yield from _call(session, worker, bench, cases[:2])
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
        yield from _many(session, worker, bench, cases)
        yield from _memory(session, worker, workload, cases[0])  # the last: it lays the arena out anew
    elif everything and not model:
        beside = [one for one in (*session.suite(), *session.suite(held_out=True)) if one.dtype == workload.dtype]
        if workload == min(beside, key=session.moved_bytes) and session.moved_bytes(workload) <= SPECIAL_BYTES:
            yield from _many(session, worker, bench, cases)  # where no workload is small
        if workload.label in session.special_at:
            yield from _specials(session, worker, workload)


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
        found, fault = _try_beside_baseline(session, build, partial(_first_checks, session, workload))
        if fault is not None:
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


def collect_checks(found: Iterable[Check]) -> tuple[list[Check], WorkerFailure | None]:
    """The checks to the first that fails, and what went wrong in them."""
    made: list[Check] = []
    try:
        for check in found:
            made.append(check)
            if not check.passed:
                raise WorkerFailure(*failure(check))
    except WorkerFailure as fault:
        return made, fault
    return made, None


def _try_beside_baseline(
    session: EvaluationSession, build: Build, found: Callable[[Build], Iterator[Check]]
) -> tuple[list[Check], WorkerFailure | None]:
    """What went wrong counts where the kernel folder's own baseline gets it right; not, where it has none."""
    made, fault = collect_checks(found(build))
    if fault is None:
        return made, None
    own = _own_baseline(session)
    if own is None or not own.ok or own.candidate == build.candidate:
        return [], None
    its_fault = collect_checks(found(own))[1]
    session.pool.drop(own.candidate)
    return [], fault if its_fault is None else None


def check_once(session: EvaluationSession, build: Build, workload: Workload) -> str:
    """What is wrong with a call of the build at one size, inputs drawn from their first distribution; "" if nothing is."""
    found, fault = collect_checks(_first_checks(session, workload, build))
    if found and not found[-1].passed and found[-1].error > 1 and _errs_as_shipped(session, build):
        _, fault = collect_checks(_first_checks(session, workload, build))
    return fault.reason if fault else ""


def _own_baseline(session: EvaluationSession) -> Build | None:
    """The kernel folder's own baseline, built or not; None where there is none, or no compiler for it."""
    try:
        return session.build(session.store.put(session.kernel.baseline(session.device)[1].read_text()))
    except (KernelError, MissingTool, OSError):
        return None


def _give_other_scalars(session: EvaluationSession, build: Build, workloads: tuple[Workload, ...]) -> list[Check]:
    """One call with other values of the scalars than the spec's: who exports the kernel's operator may give any.

    Raises WorkerFailure for what the kernel's own baseline gets right.
    """
    if (case := session.cases.other_scalars(min(workloads, key=session.moved_bytes))) is None:
        return []
    found, fault = _try_beside_baseline(session, build, partial(_with_other_scalars, session, *case))
    if fault is not None:
        raise fault
    return found


def _with_other_scalars(session: EvaluationSession, kernel: Kernel, case: Case, build: Build) -> Iterator[Check]:
    session.compile_ahead(build, (case.workload,), kernel.spec)
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, case.workload, 1, spec=kernel.spec)
    yield from _call(session, worker, bench, [case])


def check_second_module(
    session: EvaluationSession, problem: Problem, build: Build, workloads: tuple[Workload, ...]
) -> tuple[list[Check], tuple[str, ...]]:
    """A second module of the same class with weights of its own in the same process, and then the first one again: a network has
    many. At last the first one with the second one's weights, as who loads a checkpoint into it has it: who keeps what it made of its
    weights is warned of, since KernelBench does not ask for that. Raises WorkerFailure for what one module has of the other."""
    workload = min(workloads, key=session.moved_bytes)
    case = session.cases.get(workload, distributions(session.spec, session.extra_values)[0], session.extra_values)
    worker, made, seed = session.pool.get(build), [], 1 + secrets.randbits(30)
    bench = map_buffers(session, worker, workload, 1)
    with problem.another_instance(seed):
        right = compute_expected(problem, workload, case.inputs, case.name)
        other = Case(workload, f"{case.name}, a second module", case.inputs, right)
        made += list(_call(session, worker, bench, [other], instance=seed))
    first = replace(case, name=f"{case.name}, the first module behind a second one")
    made += list(_call(session, worker, bench, [first]))
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
    if not _follows(session, problem, worker, case, CONSTANT) and _follows(session, problem, worker, case, VARIED):
        said = (*said, UNFOLLOWED)
    return made, said


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


def check_initial_state(session: EvaluationSession, problem: Problem, build: Build, workload: Workload) -> Check:
    """Whether a module begins in the state in which Model begins: judged calls are given theirs. Raises WorkerFailure."""
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, workload, 1)
    worker.request(bench.message(constructed=problem.seed), timeout_s=session.call_s)
    said = problem.compare_initial_state(workload, bench.outputs(0))
    if said:
        raise WorkerFailure(Outcome.INCORRECT, said)
    return Check(workload=workload.label, name="state before any call", passed=True)


def _has_integers(session: EvaluationSession, workload: Workload) -> bool:
    return any("float" not in session.spec.dtype(tensor, workload) for tensor in session.spec.outputs)


def _memory(session: EvaluationSession, worker: Worker, workload: Workload, case: Case) -> Iterator[Check]:
    """Tensors that begin behind an alignment; on a CPU between pages without access, too; at last values that are no numbers."""
    bench = map_buffers(session, worker, workload, 1, wide=True, shift=_shift(session, worker))
    yield from _call(session, worker, bench, [replace(case, name=f"{case.name}, tensors that begin anywhere")])
    if session.device == "cpu" and not isinstance(worker, PythonWorker):
        yield from _fenced(session, worker, bench, case)
    yield from _specials(session, worker, workload, shift=_shift(session, worker))
    yield from _specials(session, worker, workload)  # and where a vector load may take its other way


def _specials(session: EvaluationSession, worker: Worker, workload: Workload, **how: Any) -> Iterator[Check]:
    """Values that are no finite numbers; `how`: as Layout takes it."""
    bench = map_buffers(session, worker, workload, 1, wide=True, **how)
    for name in SPECIAL:
        special = session.cases.special(name, workload, session.extra_values) if name in session.asks else None
        if special is not None:
            yield from _call(session, worker, bench, [special])


def _shift(session: EvaluationSession, worker: Worker) -> int:
    if session.device == "cuda":
        return GPU_SHIFT
    return TORCH_SHIFT if isinstance(worker, PythonWorker) else 0


def _errs_as_shipped(session: EvaluationSession, own: Build | None = None) -> bool:
    """Whether what the kernel folder's own baseline errs by is of rounding's size in a 16-bit dtype, and is allowed from now on. Looked at once.
    own: that baseline, where it is built already."""
    if session.looked_at_shipped or session.spec.problem or session.kernel.properties is not None:
        return False
    session.looked_at_shipped = True
    own = own or _own_baseline(session)
    if own is None or not own.ok:
        return False
    worst: dict[str, float] = {}
    small = [w for w in session.suite() if w.dtype in shipped.DTYPES and session.moved_bytes(w) <= SHIPPED_BYTES]
    try:
        session.compile_ahead(own, tuple(small))
        worker = session.pool.get(own)
        for workload in small:
            for values in distributions(session.spec, session.extra_values):
                case = session.cases.get(workload, values, session.extra_values)
                bench = map_buffers(session, worker, workload, 1)
                collect_checks(_call(session, worker, bench, [case]))
                found = shipped.shares(session.kernel, case, bench.outputs(0))
                worst = {name: max(share, worst.get(name, 0.0)) for name, share in found.items()}
    except WorkerFailure:
        return False
    finally:
        session.pool.drop(own.candidate)
    if not (allowed := shipped.allow_errors(worst)):
        return False
    said = ", ".join(
        f"{name} by {share:.2g} of what rounding every operator to 16 bits makes" for name, share in allowed
    )
    session.notices = (
        *session.notices,
        f"the kernel's own baseline errs by rounding in between, so every candidate may: {said}",
    )
    session.allow(allowed)
    return True


def _hands_on(session: EvaluationSession, build: Build, workload: Workload, name: str) -> bool:
    """Whether the kernel folder's own baseline hands such values on where its reference does. What ships without does not have to:
    it is said, and nobody is asked from then on."""
    if name not in SPECIAL or (own := _own_baseline(session)) is None:
        return True
    if own.ok and own.candidate != build.candidate:
        case = session.cases.special(name, workload, session.extra_values)
        worker = session.pool.get(own)
        bench = map_buffers(session, worker, workload, 1, wide=True, shift=_shift(session, worker))
        try:
            right = case is None or all(check.passed for check in _call(session, worker, bench, [case]))
        except WorkerFailure:
            right = True  # it says nothing of them
        session.pool.drop(own.candidate)
        if right:
            return True
    session.asks.discard(name)
    lost = "NaNs" if name == NANS else "infinities"
    said = f"the kernel's own baseline loses {lost} that its reference hands on, so nobody has to hand them on"
    session.notices = (*session.notices, said)
    return False


def _fenced(session: EvaluationSession, worker: Worker, bench: GuardedBuffers, case: Case) -> Iterator[Check]:
    """On a CPU: tensors that end, then begin, beside pages without access; inputs cannot be written."""
    workload = bench.layout.workload
    tensors = [[bench.layout.sizes[t.name], t.role == "input"] for t in session.spec.tensors]
    for end, where in ((True, "end"), (False, "begin")):
        named = replace(case, name=f"tensors that {where} where memory does")
        try:
            yield from _call(session, worker, bench, [named], fence={"end": end, "tensors": tensors})
        except WorkerFailure as fault:
            if fault.outcome is not Outcome.RUNTIME_ERROR:
                raise
            said = f"reads or writes beyond a tensor, or writes to an input ({named.name}): {fault.reason}"
            raise WorkerFailure(Outcome.INCORRECT, f"{said} at {workload.label}") from None


def _many(session: EvaluationSession, worker: Worker, bench: GuardedBuffers, cases: list[Case]) -> Iterator[Check]:
    """MANY calls, or as many as MANY_S allows, and then all cases once more: what is right at first must stay so, and in its memory."""
    layout, spec = bench.layout, session.spec
    if any(one.role == "inout" and "float" not in spec.dtype(one, layout.workload) for one in spec.tensors):
        return  # indices that a call changes would lead anywhere in the next one
    bench.write(0, cases[0].inputs)
    message = bench.message()
    worker.request(message, timeout_s=session.call_s)  # what a first call sets aside stays
    series: list[tuple[int, int]] = []
    before = _taken(session, worker)
    shared = session.device == "cuda"
    while not series or (len(series) < LEAK_SERIES[session.device] and _leaks(series, shared=shared)):
        done = _repeat(session, worker, message)
        now = _taken(session, worker)
        series.append((now - before, done))
        before = now
    if _leaks(series, shared=shared):
        taken, done = (sum(part) for part in zip(*series, strict=True))
        said = f"its process took {taken / 2**20:.0f} MiB more in {done} calls, in each of {len(series)} series of them"
        raise WorkerFailure(Outcome.OUT_OF_RESOURCES, f"{said}, at {layout.workload.label}")
    name = f"after {1 + sum(done for _, done in series)} calls"
    for case in cases:
        yield from _call(session, worker, bench, [replace(case, name=f"{case.name} {name}")])


def _leaks(series: list[tuple[int, int]], *, shared: bool) -> bool:
    """Whether every series of (bytes taken, calls) took too much and, of `shared` memory, as much a call as the others:
    who takes memory of the same GPU meanwhile takes another amount each time."""
    if any(taken <= LEAK_LEAST + LEAK_A_CALL * done for taken, done in series):
        return False
    a_call = [taken / done for taken, done in series]
    return not shared or max(a_call) <= LEAK_ALIKE * min(a_call)


def _repeat(session: EvaluationSession, worker: Worker, message: dict[str, Any]) -> int:
    """How often it was called: MANY times, or what a slow one allows."""
    done, spent, part = 0, 0.0, PACED
    while done < MANY:
        part = min(part, MANY - done)
        _answer, seconds = time_request(worker, message | {"repeat": part}, timeout_s=session.call_s)
        done, spent = done + part, spent + seconds
        quick = seconds / part < QUICK_S
        if spent > MANY_S and not quick:
            break
        part = 2 * part if quick else part
    return done


def _taken(session: EvaluationSession, worker: Worker) -> int:
    """Bytes of the GPU's memory, or on a CPU of addresses of a worker's process; 0 where they are not known."""
    if session.device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        return total - free
    with suppress(OSError, ValueError):
        return int(Path(f"/proc/{worker.process.pid}/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    return 0


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
                for check in _call(session, worker, bench, [case]):
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


def _call(
    session: EvaluationSession,
    worker: Worker,
    bench: GuardedBuffers,
    cases: list[Case],
    *,
    model: bool = False,
    poison: bool = True,
    **more: Any,
) -> Iterator[Check]:
    """`poison`: the outputs, or a call finds there what the one before left. `more`: of the request."""
    layout = bench.layout
    for slot, case in enumerate(cases):
        bench.write(slot, case.inputs, poison=poison)
    workload = layout.workload
    try:
        message = bench.message(len(cases), **more)
        _answer, seconds = time_request(worker, message, timeout_s=session.patience_s(workload))
    except WorkerFailure as fault:
        if fault.outcome is Outcome.TIMEOUT and workload.label in session.baseline_us:
            beside = f"{fault.reason} at {workload.label}, where the baseline takes {session.baseline_us[workload.label]:.3g} us"
            raise WorkerFailure(fault.outcome, beside) from None
        raise
    if model and seconds > SLOW_CALL_S:
        _took(session, workload, seconds)
    together = "" if len(cases) == 1 else ", two calls in flight"
    for slot, case in enumerate(cases):
        yield bench.check_outputs(slot, case.expected, case.name + together)
        yield bench.check_inputs(slot, case.inputs, f"inputs unchanged, {case.name}{together}")
    yield bench.check_guards(f"guards, {cases[0].name}{together}")


def draws(session: EvaluationSession, build: Build, baseline: Build, count: int) -> Drawn:
    """`count` fresh inputs over the small workloads of both suites, given to both builds; fewer of a slow problem."""
    import torch

    everything = sorted((*session.suite(), *session.suite(held_out=True)), key=session.moved_bytes)
    small = [w for w in everything if session.moved_bytes(w) <= DRAWN_BYTES[session.device]] or everything[:1]
    began = time.monotonic()
    bitwise, errors = 0, [0.0, 0.0]
    elements, differing = ({tensor.name: 0 for tensor in session.spec.outputs} for _ in range(2))
    session.pool.pinned.add(baseline.candidate)
    session.pool.only(build.candidate)
    for number in range(count):
        if number >= FEWEST_DRAWS and time.monotonic() - began > session.rules.draws_s:
            count = number
            break
        workload = small[number % len(small)]
        values = random.choice(distributions(session.spec, session.extra_values))
        if number % 20 == 0:
            session.say(f"draw {number + 1} of {count}")
        case = make_case(session.kernel, workload, values, session.extra_values, session.device)
        found: list[list[Any]] = []
        for which, one in enumerate((build, baseline)):
            try:
                session.compile_ahead(one, [workload])
                worker = session.pool.get(one)
                bench = map_buffers(session, worker, workload, 1)
                made = list(_call(session, worker, bench, [case]))
            except WorkerFailure as fault:
                if which:
                    raise RuntimeError(f"the baseline failed on a fresh draw: {fault.reason}") from None
                session.pool.drop(build.candidate)
                return Drawn(failure=f"draw {number + 1} of {count}, {values} at {workload.label}: {fault.reason}")
            wrong = [check for check in made if not check.passed]
            if wrong and not which:
                return Drawn(failure=f"draw {number + 1} of {count}: {failure(wrong[0])[1]}")
            errors[which] = max(errors[which], *(check.error for check in made))
            outputs = [bench.read(0, tensor).contiguous().view(-1) for tensor in session.spec.outputs]
            found.append([one.view(torch.uint8).clone() for one in outputs])
        same = True
        for tensor, own, other in zip(session.spec.outputs, *found, strict=True):
            apart = (own != other).view(-1, DTYPE_BYTES[session.spec.dtype(tensor, workload)]).any(dim=1)
            elements[tensor.name] += len(apart)
            differing[tensor.name] += int(apart.sum())
            same &= not bool(apart.any())
        bitwise += same
    shares = {name: differing[name] / max(1, elements[name]) for name in elements}
    told = Draws(count=count, bitwise=bitwise, error=errors[0], baseline_error=errors[1], differing=shares)
    try:
        return Drawn(draws=told, launch=_launch(session, build, baseline, small[0]))
    except WorkerFailure as fault:
        session.pool.drop(build.candidate)
        return Drawn(failure=f"while its launches were timed: {fault.reason}")


def _launch(session: EvaluationSession, build: Build, baseline: Build, workload: Workload) -> Launch | None:
    if session.device != "cuda":
        return None
    seconds = []
    session.pool.settle()
    # Inputs of its own: what lies in the arena was drawn for another size, and an index in it may lead anywhere.
    values = distributions(session.spec, session.extra_values)[0]
    case = make_case(session.kernel, workload, values, session.extra_values, session.device)
    for one in (build, baseline):
        worker = session.pool.get(one)
        bench = map_buffers(session, worker, workload, 1)
        bench.write(0, case.inputs)
        try:
            seconds.append(read_seconds(worker.request(bench.message(op="host", repeat=200))))
        except WorkerFailure as fault:
            if one is baseline:
                raise RuntimeError(f"the baseline failed while its launches were timed: {fault.reason}") from None
            raise
    return Launch(time_us=seconds[0] * 1e6, baseline_us=seconds[1] * 1e6)


def first_error(log: str) -> str:
    """The compiler's first complaint, one line, for a reason."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "the compiler failed")
