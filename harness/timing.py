"""How long: samples of several sides taken in turn, each side in its own worker, on one device.

A sample is one request: the worker runs a prepared sequence of calls (on a GPU a CUDA graph of them) and answers the
seconds by its own clock. Ours runs outside. Between samples, unannounced, a few random elements of the inputs are
changed and a few of the outputs poisoned; after some samples, chosen at random, an argument set is checked against the
reference. So a candidate that skips work when it believes that nothing changed, or that nobody looks, is wrong.
While one side is timed the others are stopped.
"""

from __future__ import annotations

import random
import secrets
import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from harness.comparison import median_interval
from harness.correctness import Bench, Layout, draw, expected
from harness.device import Arena, generator
from harness.engines.process import Worker, WorkerFailure, timed_request
from harness.records import Cache, Check, Interval, Outcome
from kernels.catalog import Kernel
from kernels.spec import Workload

if TYPE_CHECKING:
    import torch

Returned = TypeVar("Returned")
MAX_SLOTS = 768
TOUCHED_ELEMENTS = 64
"""Changed or poisoned in each tensor before a sample, over all argument sets; sparse, so that caches stay as they are."""


@dataclass(frozen=True)
class Protocol:
    """The numbers of the measurement, by device."""

    sample_s: float
    """A sample lasts about this long; shorter ones drown in the clocks' noise and the pipe's latency."""
    warm_s: float
    """Calls before the first sample, so that clocks have risen."""
    blocks: tuple[int, int]
    """At least and at most so many samples of each side."""
    width: float
    """Stop early once the 99 % interval of the ratio is this narrow (full width, relative)."""
    cache_factor: float
    """Cold: argument sets rotate through this many times the last-level cache."""
    checks: int
    """Unannounced checks in each case, at blocks drawn at random from the first ones and the end."""
    clock_share: float
    """The worker's clock may lack this share of a sample against ours, beyond what the baseline's lacks."""


class SideFailure(WorkerFailure):
    """A contestant failed while it was timed."""

    def __init__(self, side: str, outcome: Outcome, reason: str) -> None:
        super().__init__(outcome, reason)
        self.side = side


PROTOCOLS = {
    "cuda": Protocol(1e-3, 0.02, (8, 32), 0.01, 4.0, 2, 0.15),
    "cpu": Protocol(3e-3, 0.02, (6, 14), 0.04, 3.0, 1, 0.25),
}
PIPE_S = 5e-4
"""Scheduling of two processes may cost this much of a sample before we doubt a worker's clock."""


@dataclass
class Side:
    """One contestant: a worker, and what it took."""

    name: str
    worker: Worker
    symbol: str = ""
    """Under which name the worker knows the entry point; the workload's dtype where empty."""
    calls: int = 1
    """In one run of its plan."""
    repeat: int = 1
    """Runs of the plan in one sample."""
    seconds: list[float] = field(default_factory=list)
    """Per call, one for each sample."""
    lacking: list[float] = field(default_factory=list)
    """Our clock minus the worker's, per sample."""
    graph: bool = True


class Contest:
    """One workload in one cache state, laid out in an arena that all sides map."""

    def __init__(self, kernel: Kernel, workload: Workload, cache: Cache, device: str, cache_bytes: int) -> None:
        self.kernel, self.workload, self.cache, self.device = kernel, workload, cache, device
        self.protocol = PROTOCOLS[device]
        one = Layout(kernel.spec, workload, 1).size
        wanted = int(self.protocol.cache_factor * cache_bytes / one) + 1 if cache == "cold" else 1
        self.layout = Layout(kernel.spec, workload, max(2, min(wanted, MAX_SLOTS)))
        self.calls_slots = list(range(self.layout.slots)) if cache == "cold" else [0]

    def open(self, arena: Arena) -> None:
        """Fill the arena. Cold sets are all drawn afresh on a GPU, copies of a few on a CPU, where drawing is slow."""
        self.arena = arena
        rng = generator(self.device)
        self.rng = rng
        self.bench = Bench(self.kernel.spec, arena, self.layout, rng)
        self.pristine: dict[str, torch.Tensor] = {}
        for tensor in self.kernel.spec.tensors:
            view = self.layout.view(arena, tensor)
            if tensor.role == "output":
                self.layout.bytes_view(arena, tensor).fill_(0xFF)
                continue
            drawn = view if self.device == "cuda" else view[: min(2, self.layout.slots)]
            draw(drawn, tensor.values[0], self.workload, rng)
            for slot in range(drawn.shape[0], self.layout.slots):
                view[slot].copy_(view[slot % drawn.shape[0]])
            if tensor.role == "inout":
                self.pristine[tensor.name] = view.clone()
        self.synchronize()

    def synchronize(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def prepare(self, side: Side) -> float:
        """Map, plan, warm up; the seconds of one call, roughly."""
        side.worker.proceed()
        if self.arena.id not in side.worker.mapped:
            side.worker.map(self.arena)
        self.restore()
        calls = [self.layout.arguments(self.arena, slot) for slot in self.calls_slots]
        self._plan(side, calls)
        answer, _ = timed_request(side.worker, {"op": "time", "plan": 0, "repeat": 1})
        seconds = _seconds(answer) / len(calls)
        if self.cache == "hot":
            # One graph of many calls: a graph of one would time the launch of graphs.
            count = max(1, min(512, int(self.protocol.sample_s / max(seconds, 1e-7))))
            self._plan(side, calls * count)
        return seconds

    def _plan(self, side: Side, calls: list) -> None:
        message = {"op": "plan", "plan": 0, "dtype": side.symbol or self.workload.dtype, "calls": calls}
        side.graph = bool(side.worker.request(message).get("graph", True))
        side.calls = len(calls)

    def restore(self) -> None:
        """Put back the tensors that calls update in place, so that they stay in range."""
        for name, values in self.pristine.items():
            tensor = next(t for t in self.kernel.spec.tensors if t.name == name)
            self.layout.view(self.arena, tensor).copy_(values)

    def disturb(self) -> None:
        """Change a few random input elements and poison a few random output elements, in every argument set at once."""
        import torch

        for tensor in self.kernel.spec.tensors:
            view = self.layout.view(self.arena, tensor)
            where = [torch.randint(0, n, (TOUCHED_ELEMENTS,), generator=self.rng, device=view.device) for n in view.shape]
            if tensor.role == "output":
                raw = self.layout.bytes_view(self.arena, tensor)
                slots = where[0]
                at = torch.randint(0, raw.shape[1], (TOUCHED_ELEMENTS,), generator=self.rng, device=view.device)
                raw[slots, at] = 0xFF
            else:
                values = torch.empty(TOUCHED_ELEMENTS, dtype=view.dtype, device=view.device)
                draw(values, tensor.values[0], self.workload, self.rng)
                view.index_put_(tuple(where), values)
        self.synchronize()

    def sample(self, side: Side) -> None:
        """One sample of one side; the caller has stopped the others."""
        answer, outside = timed_request(side.worker, {"op": "time", "plan": 0, "repeat": side.repeat})
        inside = _seconds(answer)
        if inside > outside * 1.01 + 1e-4:
            raise WorkerFailure(Outcome.CHEATED, "its clock says more seconds than have passed")
        side.seconds.append(inside / side.repeat / side.calls)
        side.lacking.append(outside - inside)

    def check(self, side: Side) -> Check:
        """Snapshot one argument set, let the side run as it does for a sample, and look at that set."""
        tensors = {t.name: t for t in self.kernel.spec.tensors}
        slot = random.choice(self.calls_slots)
        if self.pristine:
            self.restore()
        self.disturb()
        inputs = {n: self.bench.read(slot, t).clone() for n, t in tensors.items() if t.role != "output"}
        self.synchronize()
        name = f"unannounced, {self.cache}"
        if self.pristine and self.cache == "hot":
            return Check(workload=self.workload.label, name=f"{name}: in place, checked in the cold case", passed=True)
        timed_request(side.worker, {"op": "time", "plan": 0, "repeat": 1})
        check = self.bench.check_outputs(slot, expected(self.kernel, self.workload, inputs), name)
        if check.passed:
            check = self.bench.check_inputs(slot, inputs, name)
        return check


def _seconds(answer: dict) -> float:
    value = answer.get("seconds")
    if not isinstance(value, float) or not 0 <= value < 3600:
        raise WorkerFailure(Outcome.CHEATED, f"its clock answered {value!r}")
    return max(value, 1e-9)


@dataclass
class Result:
    """Of one contest: seconds per call of each side, the ratios to the first side, and the checks that were made."""

    median_us: dict[str, float]
    ratios: dict[str, list[float]]
    """side -> first side's time / its time, one for each block."""
    checks: dict[str, list[Check]]
    samples: int
    graph: dict[str, bool]

    def speedup(self, name: str) -> Interval:
        return median_interval(self.ratios[name])


def run(contest: Contest, sides: list[Side], *, check: tuple[str, ...] = (), blocks: tuple[int, int] | None = None) -> Result:
    """Blocks of one sample of each side, in an order that is drawn anew, until the intervals are narrow.

    `sides[0]` is what the others are compared with. Sides named in `check` are looked at unannounced. Raises SideFailure naming the contestant that failed.
    """
    protocol = contest.protocol
    least, most = blocks or protocol.blocks
    rng = random.Random(secrets.randbits(64))
    checks: dict[str, list[Check]] = {side.name: [] for side in sides}

    def alone(side: Side, action: Callable[[Side], Returned]) -> Returned:
        for other in sides:
            if other is not side:
                other.worker.pause()
        side.worker.proceed()
        try:
            return action(side)
        except WorkerFailure as failure:
            raise SideFailure(side.name, failure.outcome, failure.reason) from None

    def look(side: Side) -> None:
        found = alone(side, contest.check)
        checks[side.name].append(found)
        if not found.passed:
            raise SideFailure(side.name, Outcome.CHEATED, f"wrong while it was timed: {found.message}")

    try:
        for side in sides:
            seconds = alone(side, contest.prepare) * side.calls
            side.repeat = max(1, round(protocol.sample_s / max(seconds, 1e-7)))
            for _ in range(1 if seconds > protocol.warm_s else 3):
                alone(side, contest.sample)
            side.seconds.clear()
            side.lacking.clear()
        looks = {side.name: set(rng.sample(range(least + 1), protocol.checks)) for side in sides if side.name in check}
        for block in range(most):
            if contest.pristine and block % 4 == 0:
                contest.restore()
            for side in rng.sample(sides, len(sides)):
                if block in looks.get(side.name, ()):
                    look(side)
                contest.disturb()
                alone(side, contest.sample)
            if block + 1 >= least and _narrow(sides, protocol.width):
                break
        for side in sides:
            if least in looks.get(side.name, ()):
                look(side)
    finally:
        for side in sides:
            side.worker.proceed()
    first = sides[0]
    for side in sides[1:]:
        _doubt(first, side, protocol)
    return Result(
        {side.name: statistics.median(side.seconds) * 1e6 for side in sides},
        {side.name: _ratios(first, side) for side in sides},
        checks,
        len(first.seconds),
        {side.name: side.graph for side in sides},
    )


def _ratios(first: Side, side: Side) -> list[float]:
    return [a / b for a, b in zip(first.seconds, side.seconds, strict=True)]


def _narrow(sides: list[Side], width: float) -> bool:
    intervals = [median_interval(_ratios(sides[0], side)) for side in sides[1:]] or [
        median_interval([s / statistics.median(sides[0].seconds) for s in sides[0].seconds])
    ]
    return all((interval.high - interval.low) / interval.median < width for interval in intervals)


def _doubt(first: Side, side: Side, protocol: Protocol) -> None:
    """The stopwatch outside: a worker whose clock lacks more than the baseline's does is not believed."""
    sample = statistics.median(side.seconds) * side.repeat * side.calls
    lacking = statistics.median(side.lacking) - statistics.median(first.lacking)
    if lacking > PIPE_S + protocol.clock_share * sample:
        raise SideFailure(
            side.name,
            Outcome.CHEATED,
            f"its clock lacks {lacking * 1e3:.2f} ms of a sample of {sample * 1e3:.2f} ms against ours",
        )
