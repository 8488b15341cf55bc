"""Fresh inputs for a build and its baseline: how far each is off, and where their bits differ."""

from __future__ import annotations

import random
import time
from typing import Any

from harness.checks.cases import make_case
from harness.checks.correctness import failure
from harness.checks.drawing import distributions
from harness.judge.calls import judge_calls
from harness.judge.session import EvaluationSession, map_buffers
from harness.processes.worker import WorkerFailure
from harness.records import Build, Draws, Launch
from harness.timing.sampling import read_seconds
from kernels.spec import DTYPE_BYTES, Frozen, Workload

DRAWN_BYTES = {"cuda": 16 << 20, "cpu": 1 << 20}
"""Bytes moved by a call, by device, above which a workload is left to the checks; where all are larger, the smallest
is drawn."""
FEWEST_DRAWS = 50
"""Fresh inputs that a slow problem is given in any case."""


class Drawn(Frozen):
    """What `draw_again` found; `failure`: what was wrong, or ""."""

    draws: Draws | None = None
    launch: Launch | None = None
    failure: str = ""


def draw_again(session: EvaluationSession, build: Build, baseline: Build, count: int) -> Drawn:
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
                made = list(judge_calls(session, worker, bench, [case]))
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
