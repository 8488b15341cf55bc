"""Calls of a module with state in a row: each judged from what the one before has left, and where a long row of them leads."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from harness.checks.buffers import GuardedBuffers
from harness.checks.drawing import draw_inputs
from harness.checks.tolerance import compute_expected
from harness.judge.session import SMALL_BYTES, EvaluationSession, map_buffers
from harness.processes.worker import Worker, time_request
from harness.records import Check
from kernels.spec import Workload

if TYPE_CHECKING:
    import torch

IN_A_ROW = 3
MANY, STATE_S, PACED = 5000, 1.0, 20
"""Calls in a row, seconds that those of a module with state may take, and calls that are timed first."""
ALONG, ALONG_JUDGED = 128, 4
"""Calls of a row whose outputs are each compared with Model's, and of those that differ the most that are judged."""
ROW_ERROR, ROW_NOISE, SHAKEN, ROW_TRIES = 1e-3, 16, 2, 1
"""Share of a state's largest value, and multiple of how far it moves where inputs are other by so many of their last bits, by which it may differ
from Model's behind a long row of calls, and how often one that differs by more is looked at again."""


def calls_in_a_row(
    session: EvaluationSession, worker: Worker, workload: Workload, values: str, *, long: bool, beside: int = 0
) -> Iterator[Check]:
    """Checks of a module with state: calls that go on from what the one before has left, each judged from there; with `long` once more
    behind many calls in a row. `beside`: the seed of another module of its class, which is called between them."""
    bench = map_buffers(session, worker, workload, IN_A_ROW)

    def call(times: int) -> tuple[list[dict[str, Any]], float]:
        """Inputs, and seconds, of calls in a row, the first made so often."""
        given = [
            draw_inputs(session.spec, workload, values, session.extra_values, session.device) for _ in range(IN_A_ROW)
        ]
        if times > PACED:
            _begin(session, workload, given[0])
        for slot, inputs in enumerate(given):
            bench.write(slot, inputs)
        message = bench.message(IN_A_ROW, in_a_row=times, beside=beside)
        return given, time_request(worker, message, timeout_s=session.call_s)[1]

    def left_by(slot: int, inputs: dict[str, Any]) -> dict[str, Any]:
        outputs = bench.outputs(slot)
        return {name: outputs[after].clone() for name in inputs if (after := f"{name}_after") in outputs}

    def judge(given: list[dict[str, Any]], first: int, behind: str) -> Iterator[Check]:
        left = left_by(0, given[0]) if first else {}
        for slot, inputs in list(enumerate(given))[first:]:
            right = compute_expected(session.kernel, workload, inputs | left, values)
            yield bench.check_outputs(slot, right, f"call {slot + 1 - first} of {IN_A_ROW - first} in a row{behind}")
            yield bench.check_inputs(slot, inputs, f"inputs unchanged, calls in a row{behind}")
            left = left_by(slot, inputs)

    def finite(given: list[dict[str, Any]]) -> bool:
        return all(bool(one.isfinite().all()) for one in left_by(0, given[0]).values())

    given, _seconds = call(1)
    yield from judge(given, 0, ", another module between them" if beside else "")
    if not long:
        return
    paced_s = call(PACED)[1]
    if paced_s < STATE_S / 2:  # twice more: others may have had the processor meanwhile
        paced_s = min(paced_s, call(PACED)[1], call(PACED)[1])
    times = most = max(2, min(MANY, int(STATE_S * PACED / paced_s)))
    given, _seconds = call(times)
    if not finite(given):  # it grows without bound: up to where it does
        times = 1
        while most - times > 1:
            middle = (times + most) // 2
            times, most = (middle, most) if finite(call(middle)[0]) else (times, middle)
        times = max(1, times // 2)  # each call draws inputs anew, and others of them may grow sooner
        given, _seconds = call(times)
    own = left_by(0, given[0])
    yield from judge(given, 1, f" behind {times} others")
    if workload == min(session.suite(), key=session.moved_bytes):
        fault = _goes_another_way(session, workload, given, times, own)
        for _ in range(ROW_TRIES):  # a tie may fall the other way in every call, of inputs that come with a tie alone
            if not fault:
                break
            given, _seconds = call(times)
            own = left_by(0, given[0])
            fault = _goes_another_way(session, workload, given, times, own)
        yield Check(workload=workload.label, name=f"the state behind {times} calls", passed=not fault, message=fault)
        if session.moved_bytes(workload) <= SMALL_BYTES:
            yield from _look_along(session, worker, workload, values)


def _begin(session: EvaluationSession, workload: Workload, inputs: dict[str, Any]) -> None:
    """A long row begins where Model does: what goes wrong at one of the first calls is met by no row that begins behind them."""
    for name, values in session.rules.initial_state(workload).items():
        inputs[name].copy_(values.view_as(inputs[name]))


def _look_along(session: EvaluationSession, worker: Worker, workload: Workload, values: str) -> Iterator[Check]:
    """ALONG calls in a row, each with outputs of its own: those that are not near Model's of the same row are judged from the state before them.

    What is wrong at one count of a counter that the state holds shows in no call that begins in a state which was put in. The first call that
    is not near is where a row goes wrong that goes on rightly from there.
    """
    given = [draw_inputs(session.spec, workload, values, session.extra_values, session.device) for _ in range(ALONG)]
    _begin(session, workload, given[0])

    def row(of: Worker) -> tuple[GuardedBuffers, list[dict[str, torch.Tensor]]]:
        bench = map_buffers(session, of, workload, ALONG)
        for slot, inputs in enumerate(given):
            bench.write(slot, inputs)
        of.request(bench.message(ALONG, in_a_row=1), timeout_s=session.call_s)
        return bench, [{name: value.clone() for name, value in bench.outputs(slot).items()} for slot in range(ALONG)]

    build = session.build(session.rules.eager()[0])
    try:
        right = row(session.pool.get(build))[1]
    finally:
        session.pool.drop(build.candidate)
    bench, own = row(worker)
    apart = [
        slot for slot in range(1, ALONG) if not all(_is_near(own[slot][name], one) for name, one in right[slot].items())
    ]
    for slot in sorted({*apart[:1], *random.sample(apart, min(ALONG_JUDGED, len(apart)))}):
        left = {name: own[slot - 1][after] for name in given[slot] if (after := f"{name}_after") in own[slot - 1]}
        expected = compute_expected(session.kernel, workload, given[slot] | left, values)
        yield bench.check_outputs(slot, expected, f"call {slot + 1} of {ALONG} in a row")
    yield Check(workload=workload.label, name=f"{ALONG} calls in a row beside Model's", passed=True)


def _is_near(own: torch.Tensor, right: torch.Tensor) -> bool:
    """Whether no element is further off than ROW_ERROR of the largest."""
    if not right.is_floating_point():
        return bool((own == right).all())
    one, other = own.double().nan_to_num(), right.double().nan_to_num()
    return bool(((one - other).abs() <= ROW_ERROR * other.abs().amax()).all()) if other.numel() else True


def _goes_another_way(
    session: EvaluationSession, workload: Workload, given: list[dict[str, Any]], times: int, own: dict[str, Any]
) -> str:
    """What is wrong with a state behind so many calls of the same inputs, beside Model's behind as many, or "".

    A call that is judged begins in the candidate's own state, so what goes wrong there step by step, or once in many calls, shows in none of
    them: a counter that wraps. How far rounding carries two rows apart is how far Model's own moves where its inputs are other in the last bits.
    """
    import torch

    build = session.build(session.rules.eager()[0])
    worker = session.pool.get(build)
    bench = map_buffers(session, worker, workload, IN_A_ROW)

    def row(inputs: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        for slot, one in enumerate(inputs):
            bench.write(slot, one)
        worker.request(bench.message(IN_A_ROW, in_a_row=times), timeout_s=session.call_s)
        outputs = bench.outputs(0)
        return {name: outputs[f"{name}_after"].double() for name in own}

    def shaken(inputs: dict[str, Any]) -> dict[str, Any]:
        made = dict(inputs)
        for name, value in inputs.items():
            if name not in own and value.is_floating_point() and value.element_size() > 1:
                made[name] = value * (1 + SHAKEN * torch.finfo(value.dtype).eps * torch.randn_like(value).sign())
        return made

    try:
        right = row(given)
        apart = {name: (own[name].double() - value).abs() for name, value in right.items()}
        scale = {name: ROW_ERROR * value.abs().amax() * own[name].is_floating_point() for name, value in right.items()}
        if all(bool((apart[name] <= scale[name]).all()) for name in own):
            return ""
        moved = row([shaken(one) for one in given])
    finally:
        session.pool.drop(build.candidate)
    for name, value in right.items():
        most = scale[name] + ROW_NOISE * (moved[name] - value).abs().amax()
        wrong = ~(apart[name] <= most)
        if bool(wrong.any()):
            at = tuple(wrong.nonzero()[0].tolist())
            said = f"{float(own[name][at]):.6g}, and Model's is {float(value[at]):.6g}"
            return f"{name} is {said} behind {times} calls of the same inputs"
    return ""
