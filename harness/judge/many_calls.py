"""Many calls of one process: what is right at first must stay so, in every call, and in its memory."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.checks.buffers import GuardedBuffers
from harness.checks.cases import Case
from harness.judge.calls import judge_calls
from harness.judge.rows import MANY, PACED
from harness.judge.session import SMALL_BYTES, EvaluationSession, map_buffers
from harness.processes.worker import Worker, WorkerFailure, time_request
from harness.records import Check, Outcome

QUICK_S, MANY_S, OTHERS_S = 50e-6, 0.25, 0.1
"""Seconds of a call up to which a kernel makes MANY of them, and that the calls of a slower one may take, of the smallest workload and of each
other one: what counts calls goes on counting."""
LONG, LONG_S = (1 << 16) + 1, 0.3
"""Calls of the smallest workload, and seconds that they may take."""
LOOKED_AT, LOOKS_S = 128, 0.4
"""Calls of each small workload that are looked at one by one, and seconds that they may take."""
TOGETHER = 16
"""So many of them are one request, in which they follow each other, each with outputs of its own: a request takes as long as dozens of calls."""
LEAK_LEAST, LEAK_A_CALL = 64 << 20, 16 << 10
"""Bytes that a process may take in all, and for each call, while it makes many calls."""
LEAK_SERIES, LEAK_TRIES, LEAK_ALIKE = 2, {"cuda": 6, "cpu": 2}, 1.25
"""Series of calls that must take too much before a process leaks, and so many alike on a GPU: one more, of the most there are, and the largest
quotient of what two of them take a call. Its memory is not the process's own alone: what another gives back hides a leak, what it takes looks like one."""


def check_many_calls(
    session: EvaluationSession, worker: Worker, bench: GuardedBuffers, cases: list[Case]
) -> Iterator[Check]:
    """MANY calls, or as many as MANY_S allows, and then all cases once more: what is right at first must stay so, and in its memory."""
    layout, spec = bench.layout, session.spec
    if any(one.role == "inout" and "float" not in spec.dtype(one, layout.workload) for one in spec.tensors):
        return  # indices that a call changes would lead anywhere in the next one
    yield from _look_at_each(session, worker, cases[0])
    bench = map_buffers(session, worker, layout.workload, layout.slots, wide=True)
    bench.write(0, cases[0].inputs)
    message = bench.message()
    worker.request(message, timeout_s=session.call_s)  # what a first call sets aside stays
    series: list[tuple[int, int]] = []
    before = _taken(session, worker)
    shared = session.device == "cuda"
    longest = layout.workload == min(session.suite(), key=session.moved_bytes)
    most = LEAK_TRIES[session.device]
    while not series or (len(series) < most and not _is_clean(*series[-1]) and not _leaks(series, shared=shared)):
        done = _repeat(session, worker, message, longest=longest)
        now = _taken(session, worker)
        series.append((now - before, done))
        before = now
    if _leaks(series, shared=shared):
        taken, done = (sum(part) for part in zip(*series, strict=True))
        said = f"its process took {taken / 2**20:.0f} MiB more in {done} calls, in each of {len(series)} series of them"
        raise WorkerFailure(Outcome.OUT_OF_RESOURCES, f"{said}, at {layout.workload.label}")
    name = f"after {1 + sum(done for _, done in series)} calls"
    for case in cases:
        yield from judge_calls(session, worker, bench, [replace(case, name=f"{case.name} {name}")])


def _is_clean(taken: int, done: int) -> bool:
    """Whether a process took no more than it may in so many calls, and nobody gave back more than that, which would hide a leak."""
    return -LEAK_LEAST <= taken <= LEAK_LEAST + LEAK_A_CALL * done


def _leaks(series: list[tuple[int, int]], *, shared: bool) -> bool:
    """Whether enough of the series of (bytes taken, calls) took too much and, of `shared` memory, about as much a call: who takes memory
    of the same GPU meanwhile, or gives it back, moves another amount each time."""
    a_call = sorted(taken / done for taken, done in series if taken > LEAK_LEAST + LEAK_A_CALL * done)
    if not shared:
        return len(a_call) >= LEAK_SERIES
    return any(last <= LEAK_ALIKE * first for first, last in zip(a_call, a_call[LEAK_SERIES:], strict=False))


def _look_at_each(session: EvaluationSession, worker: Worker, case: Case) -> Iterator[Check]:
    """LOOKED_AT calls one after another, each looked at: who leaves out one call of so many or fewer is found out. What has the bits of outputs
    that were checked is right; else it is checked, for LOOKS_S at the most."""
    import torch

    few = session.moved_bytes(case.workload) > SMALL_BYTES
    bench = map_buffers(session, worker, case.workload, 1 if few else min(TOGETHER, LOOKED_AT))
    slots = range(bench.layout.slots)
    checked, done, began = dict[str, torch.Tensor](), 0, time.perf_counter()
    while done < LOOKED_AT and (done < 2 or time.perf_counter() - began < LOOKS_S):
        for slot in slots:
            bench.write(slot, case.inputs)
        worker.request(bench.message(len(slots), in_turn=True), timeout_s=session.patience_s(case.workload))
        for slot in slots:
            now = {name: values.contiguous().view(torch.uint8) for name, values in bench.outputs(slot).items()}
            done += 1
            if not checked or not all(torch.equal(now[name], checked[name]) for name in now):
                check = bench.check_outputs(slot, case.expected, f"{case.name}, call {done} of {LOOKED_AT} in a row")
                if not check.passed or not checked:
                    yield check
                checked = {name: values.clone() for name, values in now.items()}
    yield Check(workload=case.workload.label, name=f"{done} calls in a row, each looked at", passed=True)


def _repeat(session: EvaluationSession, worker: Worker, message: dict[str, Any], *, longest: bool) -> int:
    """How often it was called: MANY times, or what a slow one allows; with `longest` until a counter of 16 bits has gone round, where LONG_S
    suffices."""
    done, spent, part, a_call = 0, 0.0, PACED, 0.0
    while done < MANY or (longest and done < LONG and spent + (LONG - done) * a_call < LONG_S):
        part = min(part, (MANY if done < MANY else LONG) - done)
        _answer, seconds = time_request(worker, message | {"repeat": part}, timeout_s=session.call_s)
        done, spent, a_call = done + part, spent + seconds, seconds / part
        if spent > (MANY_S if longest else OTHERS_S) and a_call >= QUICK_S:
            break
        part = 2 * part if a_call < QUICK_S else part
    return done


def _taken(session: EvaluationSession, worker: Worker) -> int:
    """Bytes of the GPU's memory, or on a CPU of a worker's process: what it may write, and what is shared and was touched; 0 where they are not
    known. Addresses that are only reserved are no memory: malloc does so with 64 MiB for each thread."""
    if session.device == "cuda":
        import torch

        free, total = torch.cuda.mem_get_info()
        return total - free
    with suppress(OSError, ValueError):
        _size, _resident, shared, _text, _lib, data, _dt = Path(f"/proc/{worker.process.pid}/statm").read_text().split()
        return (int(shared) + int(data)) * os.sysconf("SC_PAGE_SIZE")
    return 0
