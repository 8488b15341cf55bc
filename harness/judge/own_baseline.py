"""What the kernel folder's own baseline does wrong itself, of which nobody is accused."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from harness.checks import shipped
from harness.checks.cases import NANS, SPECIAL
from harness.checks.drawing import distributions
from harness.judge.calls import collect_checks, judge_calls, shift_of
from harness.judge.session import EvaluationSession, MissingTool, map_buffers
from harness.processes.worker import WorkerFailure
from harness.records import Build, Check
from kernels.catalog import KernelError
from kernels.spec import Workload

SHIPPED_BYTES = 64 << 20
"""Bytes of a call up to which a workload says what the baseline errs by."""


def own_baseline(session: EvaluationSession) -> Build | None:
    """The kernel folder's own baseline, built or not; None where there is none, or no compiler for it."""
    try:
        return session.build(session.store.put(session.kernel.baseline(session.device)[1].read_text()))
    except (KernelError, MissingTool, OSError):
        return None


def try_beside_baseline(
    session: EvaluationSession, build: Build, found: Callable[[Build], Iterator[Check]]
) -> tuple[list[Check], WorkerFailure | None]:
    """What went wrong counts where the kernel folder's own baseline gets it right; not, where it has none."""
    made, fault = collect_checks(found(build))
    if fault is None:
        return made, None
    own = own_baseline(session)
    if own is None or not own.ok or own.candidate == build.candidate:
        return [], None
    its_fault = collect_checks(found(own))[1]
    session.pool.drop(own.candidate)
    return [], fault if its_fault is None else None


def errs_as_shipped(session: EvaluationSession, own: Build | None = None) -> bool:
    """Whether what the kernel folder's own baseline errs by is of rounding's size in a 16-bit dtype, and is allowed from now on. Looked at once.
    own: that baseline, where it is built already."""
    if session.looked_at_shipped or session.spec.problem or session.kernel.properties is not None:
        return False
    session.looked_at_shipped = True
    own = own or own_baseline(session)
    if own is None or not own.ok:
        return False
    worst: dict[str, shipped.Share] = {}
    small = [w for w in session.suite() if w.dtype in shipped.DTYPES and session.moved_bytes(w) <= SHIPPED_BYTES]
    try:
        session.compile_ahead(own, tuple(small))
        worker = session.pool.get(own)
        for workload in small:
            for values in distributions(session.spec, session.extra_values):
                case = session.cases.get(workload, values, session.extra_values)
                bench = map_buffers(session, worker, workload, 1)
                collect_checks(judge_calls(session, worker, bench, [case]))
                found = shipped.shares(session.kernel, case, bench.outputs(0))
                worst = {name: share.larger(worst.get(name, share)) for name, share in found.items()}
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


def hands_on(session: EvaluationSession, build: Build, workload: Workload, name: str) -> bool:
    """Whether the kernel folder's own baseline hands such values on where its reference does. What ships without does not have to:
    it is said, and nobody is asked from then on."""
    if name not in SPECIAL or (own := own_baseline(session)) is None:
        return True
    if own.ok and own.candidate != build.candidate:
        case = session.cases.special(name, workload, session.extra_values)
        worker = session.pool.get(own)
        bench = map_buffers(session, worker, workload, 1, wide=True, shift=shift_of(session, worker))
        try:
            right = case is None or all(check.passed for check in judge_calls(session, worker, bench, [case]))
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
