"""One comparison's ground: argument sets in memory that all sides map, the samples that a side takes of it, the looks at them.

A sample is one request: the worker runs a prepared sequence of calls and answers the seconds by its own clock. Ours runs
outside. Every call of a sample has inputs that were made for it and outputs of its own (harness/timing/neighbours.py). On a GPU
what makes and reads them stands around it in the same CUDA graph; their own time, taken by a worker without a candidate,
is subtracted. On a CPU the parent does both, between samples. After a sample its process is stopped, and before it goes
on every call may be looked at, wholly: which ones, nothing shows before.
"""

from __future__ import annotations

import ctypes
import math
import os
import random
import secrets
import statistics
import time
from dataclasses import dataclass, field
from typing import Any

from harness.checks import properties
from harness.checks.buffers import GuardedBuffers
from harness.checks.drawing import distributions
from harness.checks.judging import NEAR_MISS
from harness.checks.layout import Layout
from harness.checks.tolerance import compute_expected
from harness.device import ArgumentBuffers, generator, synchronize
from harness.farside.forms import OutputCopier
from harness.processes.worker import Worker, WorkerFailure, time_request
from harness.records import Cache, Check, Outcome, TimingContext
from harness.timing.mixtures import copies_together, host, is_persistent
from harness.timing.neighbours import InputProducer
from kernels.catalog import Kernel
from kernels.spec import Workload

MAX_SLOTS = 768
CHAIN_US = {"hot": 600.0, "cold": 1400.0}
"""Length of a sample on a GPU, us: one pass through a chain of two to MAX_CHAIN calls. A chain's time varied by 0.2 to
2.5 us on an H200 however long it was, the more the more memory it moves."""
MAX_CHAIN = 64
NEIGHBOURS_US, BYTES_A_US = 7.0, 1.3e6
"""Microseconds and bytes a microsecond by which a call with its neighbours is estimated: launches, and bytes moved (four
passes)."""
CHAIN_BYTES = 4 << 30
"""Argument sets of a chain take so much at most, two of them whatever they take."""
CONSTANT_BYTES = 1 << 30
"""Copies of a constant take so much at most, and are four at most: calls have them in turn."""
EVICT_FACTOR = 1.4
"""Cold: so many times the last-level cache is read between producer and kernel. On an H200 calls took as long after 1.4 as
after 3 to within 1 % where their tensors are small, to within 6 % above 25 MB, and varied a third as much."""
EVICTED_BYTES_A_US = 4e6
TABLES_FACTOR = 2.0
"""The copies of a table of which calls touch a part may hold so many times the bytes that a cold pass touches."""
HOT_SHARE = 0.5
"""Hot on a CPU: the sets of a pass take so much of the last-level cache at most."""
SCANNED_BYTES = 64 << 20
"""Bytes of outputs that are searched for poison in a sample on a CPU: all calls, or some of them at random and the
last."""
NEW_CONSTANTS = 0.75
"""Share of the looks that go to calls with a constant redrawn before the sample, where there are such calls."""
NEW_CONSTANT_TRIES = 8
"""Samples until one has a call with a new constant: a sample of few calls may have none."""
ALIKE = 1.5
"""Sides whose paces differ by less are of about one speed."""
TOGETHER, ROWS_OF_ONE, ROWS_TOGETHER = 32, 1 << 15, 1 << 18
"""Timed calls of each look, at most, that are kept to be looked at together, where chance is part of what is right, rows that count of
one, and rows of calls that are looked at at most together: a thousand show next to nothing of how two of them depend on each other, thirty
thousand little of rows that are long and few."""
ONE_THREAD = 0.02
"""Share of a sample's CPU time, at most, that other threads take of a side which works alone."""
COPY_SLACK = 1.25
"""A candidate's copy of what it returns may take so many times the baseline's, or ours, before the rest is its own time."""
COPIES_TIMED = 9
LEAST_SHARE = 0.02
"""A call that adds less than this to its neighbours' time is taken to add so much: subtraction cannot see less."""


@dataclass(frozen=True)
class Protocol:
    """The numbers of the measurement, by device."""

    sample_s: float
    """Length of a sample on a CPU, s. Shorter ones drown in the clocks' noise and the pipe's latency; longer ones
    outlast the scheduler's slice of some 3 ms: beside five other busy processes on two cores samples of 2 ms took 0.1
    to 1 % more than alone, those of 5 ms and more took half as long again or twice as long."""
    warm_s: float
    """Seconds of warm-up, in a few samples at most, until clocks have risen."""
    blocks: tuple[int, int]
    """Fewest and most samples of each arm. Eight are the fewest whose range covers the median with 99 %."""
    patience_s: float
    """Seconds that a comparison goes on after its fewest blocks (upper bound)."""
    width: float
    """Stop early once the 99 % interval of the ratio is this narrow (full width, relative)."""
    far_apart: float
    """Stop early, too, where the interval of every two arms is narrower than this share of the logarithm of their ratio: arms whose
    times are as far apart as 5 is from 1 are told apart by a wide one. Of those within 5 % of each other `width` decides, on a GPU; beyond
    that more samples change no verdict, only the last digit: they were a third of a run's seconds (H200)."""
    cache_factor: float
    """Cold on a CPU: argument sets rotate through this many times the last-level cache."""
    replan: int
    """Graphs are made anew after so many blocks: on an H200 a binary beside itself once differed by 3 % as long as both
    graphs lived, and not in other graphs of the same processes."""
    rounds: int
    """Hot on a CPU: a sample is at most so many requests, where a pass through all sets is shorter than one."""
    clock_share: float
    """The worker's clock may lack this share of a sample against ours, beyond what the baseline's lacks."""


class ArmFailure(WorkerFailure):
    """A contestant failed while it was timed."""

    def __init__(self, side: str, outcome: Outcome, reason: str) -> None:
        super().__init__(outcome, reason)
        self.arm = side


PROTOCOLS = {
    "cuda": Protocol(0.0, 0.01, (8, 24), 1.0, 0.015, 0.3, 0.0, 8, 1, 0.15),
    "cpu": Protocol(2e-3, 0.02, (8, 24), 1.0, 0.04, 0.2, 3.0, 1 << 30, 8, 0.25),
}


@dataclass
class ChanceEvidence:
    """What is known of a side's timed calls of one workload that are looked at together, in one comparison or in several."""

    seen: list[Any] = field(default_factory=list)
    secret: int = field(default_factory=lambda: secrets.randbits(64))
    """Which of their rows."""
    asked: int = 0
    """Of how many it was last asked what they came to."""

    def forget(self) -> None:
        self.seen, self.secret, self.asked = [], secrets.randbits(64), 0


@dataclass
class Arm:
    """One contestant: a worker, and what it took."""

    name: str
    worker: Worker
    symbol: str = ""
    """Under which name the worker knows the entry point; the workload's dtype where empty."""
    calls: int = 1
    """Calls in a request."""
    rounds: int = 1
    """Requests in a sample."""
    passes: int = 1
    """Passes through its calls in a request: one, unless nothing stands around them and nobody looks."""
    pace_s: float = 0.0
    """Seconds per call as warmed up, with its neighbours."""
    seconds: list[float] = field(default_factory=list)
    """Seconds per call with its neighbours, one value a sample."""
    cpu: list[float] = field(default_factory=list)
    """Seconds of CPU time per call that all threads of its process took, one value a sample (CPU only); what the process does about a
    request, some 0.1 ms a sample, is among it."""
    others_cpu: list[float] = field(default_factory=list)
    """Of these, what other threads took than the first."""
    waits: list[float] = field(default_factory=list)
    """How often a request's first thread waited for something other than a core, one value a sample (CPU only)."""
    lacking: list[float] = field(default_factory=list)
    """Our clock minus the worker's, per request, the mean of a sample's."""
    quickest_s: float = math.inf
    """Seconds per call by our clock, in the quickest request of a sample."""
    copied: list[tuple[float, float]] = field(default_factory=list)
    """Seconds per call of the copy of what it returns into the outputs, one pair a request on a CPU: plain copies, and such as do work
    that a call that writes its outputs does itself (harness/farside/forms.py)."""
    copy_s: tuple[float, float] = (math.inf, math.inf)
    """Seconds per call of either kind, at most, that are nobody's."""
    graph: bool = True
    returned: bool = False
    """Whether its calls' consumers read what was returned in its place: it is copied to the outputs behind each request, in nobody's time
    (GPU only)."""
    cpu_s: float = 0.0
    """CPU seconds of the process in requests of the sample at hand."""
    others_cpu_s: float = 0.0
    waited: int = 0
    core: int | None = None
    """The core on which all its threads are for now (ABComparison.share_core); None: they are free, or one a core."""
    looked: int = 0
    """Calls that were looked at."""
    error: float = 0.0
    """The largest of them, in tolerances."""

    def forget(self, *, all_: bool = False) -> None:
        """Let go of the last sample, or of all."""
        for values in (self.seconds, self.cpu, self.others_cpu, self.waits, self.lacking):
            del values[0 if all_ else -1 :]

    @property
    def works_alone(self) -> bool:
        """Whether one thread did all the work of the last sample; False where nobody knows."""
        return self.cpu_s > 0 and self.others_cpu_s <= ONE_THREAD * self.cpu_s

    @property
    def whole_s(self) -> float:
        """Seconds per call with the copy of what it returns. A sample's length goes by them: one that outlasts the scheduler's slice waits
        for others before it can answer, which looks like a forged clock."""
        return self.pace_s + (statistics.median(map(sum, self.copied)) if self.copied else 0.0)


def chain_length(fresh_bytes: int, evict_bytes: int, pace_us: float = 0.0) -> int:
    """Calls in a GPU's sample, from the bytes of an argument set, and from what a call is known to take with its neighbours."""
    call_us = max(NEIGHBOURS_US + fresh_bytes / BYTES_A_US, pace_us) + evict_bytes / EVICTED_BYTES_A_US
    chain_us = CHAIN_US["cold" if evict_bytes else "hot"]
    return max(2, min(int(chain_us / call_us), MAX_CHAIN, CHAIN_BYTES // fresh_bytes))


class ABComparison:
    """One workload in one cache state and timing context, laid out in an arena that all sides map."""

    def __init__(
        self,
        kernel: Kernel,
        workload: Workload,
        cache: Cache,
        device: str,
        cache_bytes: int,
        context: TimingContext = "plain",
        pace_us: float = 0.0,
        extra: dict[str, tuple[str, ...]] | None = None,
    ) -> None:
        """`pace_us`: of a call, where it is known. `extra`: distributions that inputs may have beside those of the spec."""
        self.kernel, self.workload, self.cache, self.device = kernel, workload, cache, device
        self.context = context
        self.extra = extra or {}
        self.values, *self.others = distributions(kernel.spec, self.extra)
        """The distribution of the inputs now, which is the first but for samples that do not count, and the others."""
        self.protocol = PROTOCOLS[device]
        spec, sizes, copies = kernel.spec, Layout(kernel.spec, workload, 1).sizes, {}
        kept = [tensor.name for tensor in spec.inputs if is_persistent(tensor)]
        fresh = sum(size for name, size in sizes.items() if name not in kept)
        evict = 0
        if device == "cuda":
            evict = int(EVICT_FACTOR * cache_bytes) if cache == "cold" and context != "alone" else 0
            slots = chain_length(fresh, evict, pace_us)
            if context == "alone":
                slots = max(2, min(slots, int(HOT_SHARE * cache_bytes / fresh)))
            copies = {name: max(1, min(slots, 4, CONSTANT_BYTES // sizes[name])) for name in kept}
        else:
            touched = sum(spec.tensor_bytes(tensor, workload) for tensor in spec.tensors)
            passed = self.protocol.cache_factor * cache_bytes if cache == "cold" else HOT_SHARE * cache_bytes
            slots = max(2, min(int(passed / touched) + (cache == "cold"), MAX_SLOTS))
            most = TABLES_FACTOR * passed if cache == "cold" else passed
            copies = {name: max(1, min(slots, int(most / sizes[name]))) for name in kept}
        self.layout = Layout(spec, workload, slots, copies_together(spec, copies))
        self.production = InputProducer(spec, workload, self.layout, device, evict)
        self.size = self.layout.size + self.production.size
        """Bytes of the arena."""
        self.called: list[int] = list(range(slots))
        """The argument sets of the last request, in the order of its calls."""
        self.idle = list(range(slots))
        """All argument sets on a CPU, those longest unused first."""
        self.pair: Arm | None = None
        """The neighbours by themselves, once they have been prepared (GPU only)."""
        self.evidence = ChanceEvidence()
        self.finished = 0
        """Digest of the last call as it was when its side had answered (GPU only)."""

    def open(self, buffers: ArgumentBuffers) -> None:
        """Fill the arena."""
        self.buffers = buffers
        rng = generator(self.device)
        self.bench = GuardedBuffers(self.kernel.spec, buffers, self.layout, rng)
        self.production.open(buffers, rng)
        for tensor in self.kernel.spec.poisoned:
            self.layout.bytes_view(buffers, tensor).fill_(0xFF)
        synchronize(self.device)

    def prepare(self, arm: Arm, most: int = 4) -> None:
        """Map, plan, warm up: so many samples at most for its pace."""
        if self.buffers.id not in arm.worker.mapped:
            arm.worker.map(self.buffers)
        if self.device == "cpu":
            arm.core = None
            arm.worker.pin(False)  # threads that are started now would be born on one core
        self.plan(arm)
        arm.calls, arm.rounds, arm.passes = (self.layout.slots if self.device == "cuda" else 1), 1, 1
        self.sample(arm)
        if self.device == "cpu":
            arm.worker.pin(True)
        arm.pace_s = min(arm.seconds)
        self._fill_sample(arm, arm.whole_s)
        while len(arm.seconds) < most and sum(arm.seconds) * arm.calls * arm.rounds < self.protocol.warm_s:
            self.sample(arm)
        arm.pace_s = min(arm.seconds)
        self._fill_sample(arm, arm.whole_s)
        arm.forget(all_=True)
        arm.quickest_s = math.inf

    def _fill_sample(self, arm: Arm, pace_s: float) -> None:
        """As many calls a sample as take its time at that pace."""
        if self.device == "cuda":  # always the whole chain
            if self.context == "alone":
                arm.passes = max(1, round(CHAIN_US["hot"] * 1e-6 / (pace_s * arm.calls)))
            return
        wanted = self.protocol.sample_s / max(pace_s, 1e-7)
        arm.calls = max(1, min(self.layout.slots, round(wanted)))
        arm.rounds = max(1, min(self.protocol.rounds, round(wanted / arm.calls)))

    def plan(self, arm: Arm) -> None:
        """Let the worker prepare the calls of all argument sets, on a GPU as a graph."""
        layout = self.layout
        message = layout.message(self.buffers, layout.slots, op="plan") | ({"dtype": arm.symbol} if arm.symbol else {})
        if self.device == "cpu":
            # Who is called with tensors makes its first call then, and indices must be some.
            self.production.produce([0])
        if self.device == "cuda":
            self.production.renew()
            synchronize(self.device)
            message |= {"company": self.production.message(self.context), "alone": arm.name == PAIR}
        answer = arm.worker.request(message)
        arm.graph, arm.returned = bool(answer.get("graph", True)), bool(answer.get("returned"))

    def plan_again(self, arm: Arm) -> None:
        """Another graph of the same calls."""
        arm.worker.request({"op": "plan", "again": True})

    def settle(self, arm: Arm, first: Arm) -> None:
        """A sample's calls once all paces are known: sides of about one speed make the same number of them.

        On a busy machine the longer of two samples is interrupted more often: of a hundred comparisons of a binary with
        itself five were FASTER or SLOWER where one side's pace had been taken in a busy moment.
        """
        alike = 1 / ALIKE < arm.whole_s / first.whole_s < ALIKE
        self._fill_sample(arm, (first if alike else arm).whole_s)
        if arm is not first and arm.copied:
            plain, other = (
                (statistics.median(kind) for kind in zip(*first.copied, strict=True)) if first.copied else (0.0, 0.0)
            )
            arm.copy_s = COPY_SLACK * (plain or self._copy_alone_s()), COPY_SLACK * other

    def share_core(self, arms: list[Arm]) -> None:
        """Put all sides on one core, drawn anew, where each works alone; else each has its own again.

        A process stays on the core where it ran last, for seconds, and cores are unequal where others use the machine: beside a job that
        kept one of each two hardware threads busy a call of 8 us took 8 or 14, by the core, all through one side's 24 samples.
        """
        if self.device != "cpu" or len(arms) < 2:
            return
        core = random.choice(sorted(os.sched_getaffinity(0))) if all(arm.works_alone for arm in arms) else None
        for arm in arms:
            if core is not None:
                arm.worker.put_on(core)
            elif arm.core is not None:
                arm.worker.pin(True)
            arm.core = core

    def part_cores(self, arms: list[Arm]) -> None:
        """Undo `share_core`: a thread that starts later has a core of its own."""
        for arm in arms:
            if arm.core is not None:
                arm.worker.pin(True)
                arm.core = None

    def _copy_alone_s(self) -> float:
        """Seconds in which this process copies a call's outputs as a worker does: on a CPU nobody's copy is believed to take much longer."""
        import torch

        spec, taken = self.kernel.spec, []
        outputs = [tensor for tensor in spec.outputs if tensor.role == "output"]
        copier = OutputCopier()
        copier.move = lambda to, begin, size, _seed: ctypes.memmove(to, begin, size) is None
        for slot in random.sample(self.idle, min(len(self.idle), COPIES_TIMED)):
            made = [torch.empty_like(self.layout.view(self.buffers, tensor)[slot]).fill_(1) for tensor in outputs]
            if self.cache == "cold":
                self.production.forget([slot])
            start = time.perf_counter()
            copier(made, [(t.name, self.layout.view(self.buffers, t)[slot], False) for t in outputs])
            taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    def _request(self, arm: Arm, calls: int, passes: int = 1) -> tuple[float, float]:
        """One request on argument sets that were not called since they were written: (seconds by its clock, by ours).

        Its process is stopped until they are there, or a thread of it could begin before the clock does, and as soon as it
        has answered: what it had left to do it has not done (Worker.request).
        """
        self.production.renew(passes=passes)
        if self.device == "cpu":
            self._draw_order(calls)
            self.production.produce(self.called)
            if self.cache == "cold":
                self.production.forget(self.called)
        synchronize(self.device)
        before = _cpu_use(arm) if self.device == "cpu" else (0.0, 0.0, 0)
        answer, outside = time_request(arm.worker, {"op": "time", "order": self.called, "repeat": passes})
        if (
            self.device == "cuda"
        ):  # an answer is no end: this waits for the device, and shows whether the last call was done
            start = time.perf_counter()
            self.finished = self.production.last_digest()
            outside += time.perf_counter() - start
            if arm.returned:  # what differs from what its consumers have read is found out by their digests
                arm.worker.request({"op": "deliver"})
        if self.device == "cpu":
            arm.worker.rest()
            all_s, first_s, waited = (now - then for now, then in zip(_cpu_use(arm), before, strict=True))
            arm.cpu_s += all_s
            arm.others_cpu_s += all_s - first_s
            arm.waited += int(waited)
        if code := arm.worker.foreign_code():
            raise WorkerFailure(Outcome.CHEATED, code)
        own, made = read_seconds(answer), calls * passes
        copied = read_copies(answer)
        if any(copied):
            if own + sum(copied) > outside * 1.01 + 1e-4:
                raise WorkerFailure(Outcome.CHEATED, "its clock says more seconds than have passed")
            arm.copied.append((copied[0] / made, copied[1] / made))
            nobodys = sum(min(took, most * made) for took, most in zip(copied, arm.copy_s, strict=True))
            own, outside = own + sum(copied) - nobodys, outside - nobodys
            arm.cpu_s = max(0.0, arm.cpu_s - nobodys)
        return own, outside

    def _draw_order(self, calls: int) -> None:
        """Which sets are called next, in an order that nobody foresees: who knew the next one could begin with it.

        From the half that was not called for longer, so that cold calls are cold.
        """
        long_idle = self.idle[: max(calls, (len(self.idle) + 1) // 2)]
        self.called = random.sample(long_idle, calls)
        called = set(self.called)
        self.idle = [slot for slot in self.idle if slot not in called] + self.called

    def sample(self, arm: Arm, *, look: bool = False) -> None:
        """One sample of one side, the caller has stopped the others; `look` at one of its calls, drawn at random."""
        inside = outside = arm.cpu_s = arm.others_cpu_s = 0.0
        arm.waited = 0
        looked = random.randrange(arm.rounds) if look else -1
        for number in range(arm.rounds):
            own, ours = self._request(arm, arm.calls, arm.passes)
            if own > ours * 1.01 + 1e-4:
                raise WorkerFailure(Outcome.CHEATED, "its clock says more seconds than have passed")
            inside, outside = inside + own, outside + ours
            arm.quickest_s = min(arm.quickest_s, ours / arm.calls / arm.passes)
            self._examine(arm, look=number == looked)
        arm.seconds.append(inside / arm.rounds / arm.calls / arm.passes)
        arm.cpu.append(arm.cpu_s / arm.rounds / arm.calls / arm.passes)
        arm.others_cpu.append(arm.others_cpu_s / arm.rounds / arm.calls / arm.passes)
        arm.waits.append(arm.waited / arm.rounds)
        arm.lacking.append((outside - inside) / arm.rounds)

    def _examine(self, arm: Arm, *, look: bool) -> None:
        """What the calls of the last request have left. Raises WorkerFailure."""
        if arm.name == PAIR or self.context == "alone":
            return
        self.require_written()
        if self.device == "cuda" and self.production.last_digest() != self.finished:
            raise WorkerFailure(Outcome.CHEATED, "worked on after it had answered")
        if look:
            self.look(arm, self._drawn())

    def _drawn(self) -> int:
        """The call to look at: any, but mostly one whose constants are new, where who prepared them once goes wrong."""
        # Of several passes in a row nobody knows what the first call of the last one was made from.
        known = self.called[1:] if self.device == "cuda" and self.production.began is None else self.called
        new = [slot for slot in self._with_new_constants() if slot in known]
        return random.choice(new if new and random.random() < NEW_CONSTANTS else known)

    def _with_new_constants(self) -> list[int]:
        return [slot for slot in self.called if self.production.has_new_constants(slot)]

    def look_at_new_constants(self, arm: Arm) -> None:
        """One sample more, which does not count, and a look at a call whose constants are new: the side has by then met many.

        Who prepares a constant once may be honest for its first calls, and a large call is looked at after few samples.
        """
        if arm.name == PAIR or self.context == "alone" or not self.production.kept:
            return
        for _ in range(NEW_CONSTANT_TRIES):
            self.sample(arm)
            arm.forget()
            if new := self._with_new_constants():
                self.look(arm, random.choice(new))
                return

    def unwritten(self) -> str:
        """Where poison is left, or "". Of integers it may be right, -1; a float is not a NaN of all ones by chance."""
        import torch

        called, spec = self.called, self.kernel.spec
        per_call = spec.write_bytes(self.workload)
        most = max(1, SCANNED_BYTES // max(per_call, 1))
        if self.device == "cpu" and len(called) > most:
            called = [*random.sample(called[:-1], most - 1), called[-1]]
        for tensor in spec.outputs:
            if tensor.role != "output" or "float" not in spec.dtype(tensor, self.workload):
                continue
            view = self.layout.view(self.buffers, tensor)
            width = view.element_size()
            if tensor.strides:
                left = sum(int((view[slot].view(getattr(torch, f"int{8 * width}")) == -1).sum()) for slot in called)
            elif self.device == "cuda":
                left = int((view.view(getattr(torch, f"int{8 * width}")) == -1).sum())
            else:
                first, step, count = view.data_ptr(), view.stride(0) * width, view[0].numel()
                left = sum(host().poisoned(first + slot * step, count, width) for slot in called)
            if left:
                return f"{left} elements of {tensor.name} were not written"
        return ""

    def require_written(self) -> None:
        """Raises WorkerFailure where poison is left."""
        if left := self.unwritten():
            raise WorkerFailure(Outcome.CHEATED, f"skipped work while it was timed: {left}")

    def look(self, arm: Arm, slot: int) -> None:
        """Check one timed call wholly: its inputs, every element of its outputs. Raises WorkerFailure."""
        name = f"timed calls, {self.cache}"
        inputs = self.production.inputs(slot)
        if self.device == "cuda" and not all(self.production.digests_agree(at) for at in {slot, max(slot - 1, 0)}):
            raise WorkerFailure(Outcome.CHEATED, "changed its outputs after they were read, or what read them")
        check = self.bench.check_inputs(slot, inputs, name)
        if check.passed:
            right = compute_expected(self.kernel, self.workload, inputs, self.values)
            check = self.bench.check_outputs(slot, right, name)
        if not check.passed:
            raise WorkerFailure(_blame(check), f"wrong while it was timed: {check.message}")
        self._keep_for_chance(slot)
        arm.looked += 1
        arm.error = max(arm.error, check.error)

    def _keep_for_chance(self, slot: int) -> None:
        """Of this call and some others of its request, what a kernel's properties.py looks at together. Raises WorkerFailure."""
        if not properties.looks_at_timed_calls(self.kernel):
            return
        # Of several passes in a row nobody knows what the first call of the last one was made from.
        known = self.called[1:] if self.device == "cuda" and self.production.began is None else self.called
        rows = self.kernel.spec.shape(self.kernel.spec.outputs[0], self.workload.axes)[0]
        wanted = max(2, min(TOGETHER, ROWS_OF_ONE // rows, len(known)))
        begin = random.randrange(max(1, len(known) - wanted + 1))
        for at in dict.fromkeys(
            (slot, *known[begin : begin + wanted])
        ):  # calls in a row, which may depend on each other
            call = self.production.inputs(at), self.bench.outputs(at)
            kept = properties.evidence(self.kernel, self.workload, *call, self.evidence.secret)
            self.evidence.seen.append(kept)
        if len(self.evidence.seen) * min(rows, ROWS_OF_ONE) >= ROWS_TOGETHER:
            self._look_at_chance()
            self.evidence.forget()

    def _look_at_chance(self) -> None:
        """What the timed calls come to together that are kept. Raises WorkerFailure."""
        count = len(self.evidence.seen)
        if count == self.evidence.asked:
            return
        self.evidence.asked = count
        if said := properties.unlikely(self.kernel, self.workload, self.evidence.seen):
            raise WorkerFailure(Outcome.INCORRECT, f"wrong while it was timed, over {count} calls: {said}")

    def sample_of_others(self, arm: Arm) -> None:
        """One sample that does not count, of inputs of another distribution, and a look at one of its calls.

        Nothing but the values tells it from those that do. Who is right in the checks of a young process, and for what is timed
        in an old one, is found out by it. Raises WorkerFailure.
        """
        if arm.name == PAIR or self.context == "alone" or not self.others:
            return
        values = random.choice(self.others)
        with self.production.drawn_as(values, self.extra) as changed:
            if changed:
                self.values, usual, quickest_s = values, self.values, arm.quickest_s
                try:
                    self.sample(arm, look=True)
                finally:
                    self.values, arm.quickest_s = usual, quickest_s
                arm.forget()

    def finish(self, arm: Arm) -> Check:
        """What all looks at a side have found. Raises WorkerFailure where it wrote to what is not its own."""
        self._look_at_chance()
        if name := self.production.constants_intact():
            raise WorkerFailure(Outcome.CHEATED, f"wrong while it was timed: changed its input {name}")
        guards = self.bench.check_guards("guards, timed")
        if not guards.passed:
            raise WorkerFailure(Outcome.CHEATED, f"wrong while it was timed: {guards.message}")
        return Check(
            workload=self.workload.label, name=f"{arm.looked} timed calls, {self.cache}", passed=True, error=arm.error
        )

    def long_sample(self, arm: Arm, seconds: float, *, look: bool = False, pipe_s: float = 0.0) -> float:
        """Seconds per call by our clock, of requests that take about so many and the pipe's latency does not matter.

        `look` at one of the calls: that they are many tells that this is no other sample. `pipe_s`: what the pipe takes of a request, which
        is taken off the one of a GPU.
        """
        if self.device == "cuda":
            passes = max(1, math.ceil(seconds / (arm.pace_s * arm.calls)))
            _, outside = self._request(arm, arm.calls, passes)
            self._examine(arm, look=look)
            return max(outside - pipe_s, LEAST_SHARE * outside) / passes / arm.calls
        calls = max(1, min(self.layout.slots, math.ceil(seconds / arm.pace_s)))
        rounds = max(1, math.ceil(seconds / (arm.pace_s * calls)))
        looked, total = random.randrange(rounds) if look else -1, 0.0
        for number in range(rounds):
            total += self._request(arm, calls)[1]
            self._examine(arm, look=number == looked)
        return total / rounds / calls


def _cpu_use(arm: Arm) -> tuple[float, float, int]:
    """CPU seconds of all threads of its process, which is stopped, those of the first, and how often that has waited."""
    return arm.worker.cpu_seconds(), *arm.worker.first_thread()


PAIR = "pair"
"""The side without a candidate: producer and consumer alone."""


def read_seconds(answer: dict) -> float:
    """The seconds that a worker says. Raises WorkerFailure for what is none."""
    value = answer.get("seconds")
    if not isinstance(value, float) or not 0 < value < 3600:
        raise WorkerFailure(Outcome.CHEATED, f"its clock answered {value!r}")
    return value


def read_copies(answer: dict) -> tuple[float, float]:
    """Seconds of the copies of what its calls returned, that a worker says: plain ones and others. Raises WorkerFailure for what is none."""
    copied = answer.get("copied", 0.0), answer.get("copied_otherwise", 0.0)
    if not all(isinstance(value, float) and 0 <= value < 3600 for value in copied):
        raise WorkerFailure(Outcome.CHEATED, f"its clock answered {copied!r}")
    return copied


def _blame(found: Check) -> Outcome:
    """Outcome of a timed call that was wrong: an accident of rounding is no fraud, and a repair may mend it."""
    return Outcome.INCORRECT if 0 < found.error <= NEAR_MISS else Outcome.CHEATED
