"""Calls of a candidate that are judged: every output, input and guard that a request leaves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

from harness.checks.buffers import GuardedBuffers
from harness.checks.cases import Case
from harness.checks.correctness import failure
from harness.judge.session import EvaluationSession
from harness.processes.fork_server import PythonWorker
from harness.processes.worker import Worker, WorkerFailure, time_request
from harness.records import Check, Outcome
from kernels.spec import Workload

SLOW_CALL_S = 0.01
"""Seconds of a Model's call by our clock from which on they count as what it takes: of shorter ones the pipe takes
too much."""
GPU_SHIFT = 16
"""Bytes that a tensor is moved behind an alignment on a GPU, where vector loads of so many are taken for granted. On
a CPU it is moved by one element."""
TORCH_SHIFT = 64
"""Bytes of the same for what is called with torch's tensors on a CPU: torch aligns so, and engines' vector stores take it for granted."""


def keep_pace(session: EvaluationSession, workload: Workload, seconds: float) -> None:
    """What a call of a problem's Model took."""
    session.paces_us[workload.label] = min(seconds * 1e6, session.paces_us.get(workload.label, math.inf))


def judge_calls(
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
        keep_pace(session, workload, seconds)
    together = "" if len(cases) == 1 else ", two calls in flight"
    for slot, case in enumerate(cases):
        yield bench.check_outputs(slot, case.expected, case.name + together)
        yield bench.check_inputs(slot, case.inputs, f"inputs unchanged, {case.name}{together}")
    yield bench.check_guards(f"guards, {cases[0].name}{together}")


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


def shift_of(session: EvaluationSession, worker: Worker) -> int:
    if session.device == "cuda":
        return GPU_SHIFT
    return TORCH_SHIFT if isinstance(worker, PythonWorker) else 0
