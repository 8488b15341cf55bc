"""How long: samples of several sides taken in turn, each side in its own worker, on one device.

A sample is one request: the worker runs a prepared sequence of calls (on a GPU a CUDA graph of them) and answers the
seconds by its own clock. Ours runs outside. Between samples, unannounced, a few random elements of the inputs are
changed and one or more of every output poisoned; no sample may leave poison behind, and after some, chosen at random,
argument sets are checked against the reference. Where a sample calls with the same arguments again and again, inputs
change while it runs. So a candidate that skips work when it believes that nothing changed, or that nobody looks, is
wrong. A candidate that is FASTER by its own clock must be so by ours. While one side is timed the others are stopped.
"""

from __future__ import annotations

import math
import random
import secrets
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from harness.comparison import CONFIDENCE, MARGIN, median_interval
from harness.correctness import Bench, Expected, Layout, draw, expected, judge
from harness.device import Arena, generator
from harness.engines.process import Worker, WorkerFailure, timed_request
from harness.records import Cache, Check, Interval, Outcome
from kernels.catalog import Kernel
from kernels.spec import Workload

if TYPE_CHECKING:
    import torch

Returned = TypeVar("Returned")
MAX_SLOTS = 768
TABLES_FACTOR = 2.0
"""The copies of a table of which calls touch a part may hold so many times the bytes that a cold pass touches."""
TOUCHED_ELEMENTS = 64
"""Changed or poisoned in each tensor before a sample, over all argument sets; few, so that caches stay as they are."""
CLOSELY = 32
"""As many again in an argument set that is about to be checked."""
CHECKED_BYTES = 8 << 20
"""One check looks at up to four argument sets, as many as this allows: the reference in fp64 costs the time."""
LOOK_S = 0.015
"""A hot sample during which inputs are changed lasts this long, so that the change falls inside; twice as long after each
one that it missed. Changing takes one or two milliseconds, on a GPU as many of its time slices."""
PROBED_ELEMENTS = 16
"""Of each in-place tensor of each argument set: whether a call has changed any of them."""
UNCHANGED_SHARE = 0.06
"""Calls that leave in-place tensors as they were may be so many more than the baseline's; 0.01 is what chance makes of
eight samples of a hundred calls."""
FIXED_POINTS = 2
"""Argument sets of a sample that are looked at where calls have changed nothing."""
HOT_LOOKS = 3
"""One may miss a candidate that skips calls until it is interrupted: a busy machine interrupts it just then."""
HOT_LOOKS_AT_MOST = 5
"""One may wrong an honest one that the same machine stopped in the middle of its last call, just when the inputs changed.
Two that go wrong are no accident; after one there are so many looks in all."""
NEAR_MISS = 2.0
"""Of the tolerance: tens of millions of values that nobody has seen before may hold one that rounds worse than all that
the checks drew; another answer, or one of a narrower type, is off by more."""
FORGED = 1.25
"""A side whose clock claims so much more than ours shows is accused; less is corrected, for it may be noise."""
ALIKE = 1.5
"""Sides whose paces differ by less are of about one speed."""
LONG_S = 0.015
"""The samples by which our own clock confirms FASTER; the pipe's latency is some 1 % of this, and the same for both."""
CHEAPENED = 0.5
"""Calls that take less than this share in every long sample of what they take in the shortest of the short ones are not all
made: honest ones cost the same however many there are. (One that skips what follows closely cannot hide from this on a
machine so busy that each interruption makes it honest again for a call.)"""
CHEAP = 0.2
"""The same for calls that follow at once. Less, since an honest side may find in its cache what others evict in a pause."""


@dataclass(frozen=True)
class Protocol:
    """The numbers of the measurement, by device."""

    sample_s: float
    """A sample lasts about this long. Shorter ones drown in the clocks' noise and the pipe's latency; on a CPU longer ones
    outlast the scheduler's slice of some 3 ms: beside five other busy processes on two cores samples of 2 ms took 0.1 to
    1 % more than alone, those of 5 ms and more took half as long again or twice as long."""
    warm_s: float
    """At most three samples before the first that counts, until they have taken this long: clocks have risen then."""
    whole_pass: bool
    """Cold: a sample calls all argument sets. Otherwise as many as take its side a sample's time, and the next sample
    those that follow: each call is as cold as in a whole pass."""
    blocks: tuple[int, int]
    """At least and at most so many samples of each side. Eight are the fewest whose range covers the median with 99 %."""
    patience_s: float
    """After the least number of blocks a contest goes on for this long at most."""
    width: float
    """Stop early once the 99 % interval of the ratio is this narrow (full width, relative)."""
    cache_factor: float
    """Cold: argument sets rotate through this many times the last-level cache."""
    cold_bytes: int
    """Cold: and through this many bytes at least, so that a sample is one pass at most: each of its calls has outputs of
    its own, and one that was skipped shows."""
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
    # On a GPU a pass takes about a sample's time, and it is one graph.
    "cuda": Protocol(1e-3, 0.02, True, (8, 32), 1.0, 0.01, 4.0, 2 << 30, 2, 0.15),
    "cpu": Protocol(2e-3, 0.02, False, (8, 24), 1.0, 0.04, 3.0, 0, 1, 0.25),
}


def describe(device: str) -> str:
    """The protocol in words, for the report."""
    protocol = PROTOCOLS[device]
    how = "CUDA-graph replays" if device == "cuda" else "calls in a row, threads pinned"
    return (
        f"{how}, {protocol.blocks[0]} to {protocol.blocks[1]} blocks of one sample a side in random order, each side in a "
        f"process of its own and the others stopped; cold: rotating through {protocol.cache_factor:g} times the last-level "
        f"cache or more; median of the ratio with its {CONFIDENCE:.0%} interval, FASTER beyond a margin of "
        f"{MARGIN[device]:.0%}"
    )


PIPE_S = 5e-4
"""Scheduling of two processes may cost this much of a sample before we doubt a worker's clock."""
MORE_DOUBTS = 24
"""Samples more before a clock is accused: few were taken for a search, and none may have been uninterrupted."""


@dataclass
class Side:
    """One contestant: a worker, and what it took."""

    name: str
    worker: Worker
    symbol: str = ""
    """Under which name the worker knows the entry point; the workload's dtype where empty."""
    calls: int = 1
    """That a sample makes in a row."""
    repeat: int = 1
    """How often a sample makes them."""
    pace_s: float = 0.0
    """Seconds per call as warmed up, to foresee how long a request takes."""
    seconds: list[float] = field(default_factory=list)
    """Per call, one for each sample."""
    lacking: list[float] = field(default_factory=list)
    """Our clock minus the worker's, per sample."""
    graph: bool = True
    changed: list[float] = field(default_factory=list)
    """Share of the argument sets whose in-place tensors a sample has changed, per cold sample; empty without any."""


class Contest:
    """One workload in one cache state, laid out in an arena that all sides map."""

    def __init__(self, kernel: Kernel, workload: Workload, cache: Cache, device: str, cache_bytes: int) -> None:
        self.kernel, self.workload, self.cache, self.device = kernel, workload, cache, device
        self.protocol = PROTOCOLS[device]
        spec, slots, copies = kernel.spec, 2, {}
        if cache == "cold":
            # Counted by what calls touch, which a gather's table would fill without being read.
            passed = max(self.protocol.cache_factor * cache_bytes, self.protocol.cold_bytes)
            touched = sum(spec.tensor_bytes(tensor, workload) for tensor in spec.tensors)
            slots = max(2, min(int(passed / touched) + 1, MAX_SLOTS))
            sizes = Layout(spec, workload, 1).sizes
            tables = [tensor.name for tensor in spec.tensors if tensor.role == "input" and tensor.touched]
            copies = {name: max(1, min(slots, int(TABLES_FACTOR * passed / sizes[name]))) for name in tables}
        self.layout = Layout(spec, workload, slots, copies)
        self.sets = range(self.layout.slots if cache == "cold" else 1)
        """The argument sets that are called."""
        self.first, self.count = 0, len(self.sets)
        """The next sample calls so many of them from that one on; the first follows the last."""
        self.compares = True
        """Whether one side's calls are held against another's: those of one side alone are not looked at."""

    def open(self, arena: Arena) -> None:
        """Fill the arena. Cold sets are all drawn afresh on a GPU, copies of a few on a CPU, where drawing is slow."""
        self.arena = arena
        rng = generator(self.device)
        self.rng = rng
        self.bench = Bench(self.kernel.spec, arena, self.layout, rng)
        self.pristine: dict[str, torch.Tensor] = {}
        self.before: list[tuple[torch.Tensor, tuple[torch.Tensor, ...], torch.Tensor]] = []
        self.poisoned: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}
        for tensor in self.kernel.spec.tensors:
            view = self.layout.view(arena, tensor)
            if tensor.role == "output":
                self.layout.bytes_view(arena, tensor).fill_(0xFF)
                continue
            if self.device == "cuda":
                draw(view, tensor.values[0], self.workload, rng)
            else:
                for slot in range(len(view)):
                    # One by one: torch draws into what has gaps sixteen times slower. Equal indices would find in
                    # the cache what others have read from a shared table.
                    if slot < 2 or tensor.values[0].startswith("index:"):
                        draw(view[slot], tensor.values[0], self.workload, rng)
                    else:
                        view[slot].copy_(view[slot % 2])
            if tensor.role == "inout":
                self.pristine[tensor.name] = view.clone()
        self.synchronize()

    def synchronize(self) -> None:
        if self.device == "cuda":
            import torch

            torch.cuda.synchronize()

    def prepare(self, side: Side) -> None:
        """Map, plan, warm up: a pass in which the process first touches each argument set, and samples for its pace."""
        side.worker.proceed()
        if self.arena.id not in side.worker.mapped:
            side.worker.map(self.arena)
        self.restore()
        self.first, self.count = 0, len(self.sets)
        if self.device == "cpu":
            side.worker.pin(False)  # threads that are started now would be born on one core
        self._plan(side, 1)
        answer, _ = self._run(side, 1)
        if self.device == "cpu":
            side.worker.pin(True)
        self._fill_sample(side, _seconds(answer) / side.calls)
        while len(side.seconds) < 3 and sum(side.seconds) * side.calls * side.repeat < self.protocol.warm_s:
            self.sample(side)
        side.pace_s = min(side.seconds)
        for noted in (side.seconds, side.lacking, side.changed):
            noted.clear()

    def _fill_sample(self, side: Side, pace_s: float) -> None:
        """As many calls a sample as take its time at that pace."""
        wanted = self.protocol.sample_s / max(pace_s, 1e-7)
        if self.cache == "hot":
            # One graph of many calls: a graph of one would time the launch of graphs.
            calls = max(1, min(512, int(wanted)))
            if calls != side.calls:
                self._plan(side, calls)
            side.repeat = max(1, round(wanted / calls))
        elif not self.protocol.whole_pass and all(tensor.role != "inout" for tensor in self.kernel.spec.tensors):
            # All of them where tensors are updated in place: what tells a skipped call from chance is their number.
            side.calls = max(1, min(len(self.sets), round(wanted)))

    def _plan(self, side: Side, times: int) -> None:
        """So many passes through the argument sets."""
        calls = [self.layout.arguments(self.arena, slot) for slot in self.sets] * times
        message = {"op": "plan", "dtype": side.symbol or self.workload.dtype, "calls": calls}
        message["shapes"] = self.layout.shapes()
        side.graph = bool(side.worker.request(message).get("graph", True))
        side.calls = len(calls)

    def settle(self, side: Side, first: Side) -> None:
        """A sample's calls once all paces are known: sides of about one speed make the same number of them.

        On a busy machine the longer of two samples is interrupted more often: of a hundred contests of a binary with
        itself five were FASTER or SLOWER where one side's pace had been taken in a busy moment.
        """
        if not self.protocol.whole_pass:
            alike = 1 / ALIKE < side.pace_s / first.pace_s < ALIKE
            self._fill_sample(side, (first if alike else side).pace_s)

    def _run(self, side: Side, repeat: int, calls: int | None = None) -> tuple[dict, float]:
        """Let a side make the calls of a sample (hot: or only so many); its answer, and the seconds by our clock."""
        first, count = (0, calls or side.calls) if self.cache == "hot" else (self.first, self.count)
        return timed_request(side.worker, {"op": "time", "first": first, "count": count, "repeat": repeat})

    def move_on(self, calls: int) -> None:
        """The next sample calls so many argument sets, from behind those that were called last, whichever side did."""
        if self.cache == "cold":
            self.first, self.count = (self.first + self.count) % len(self.sets), calls

    def restore(self) -> None:
        """Put back the tensors that calls update in place, so that they stay in range."""
        for name, values in self.pristine.items():
            tensor = next(t for t in self.kernel.spec.tensors if t.name == name)
            self.layout.view(self.arena, tensor).copy_(values)

    def disturb(self, closely: tuple[int, ...] = ()) -> None:
        """Change random input elements and poison random output elements, one or more in every set that is called next.

        `closely`: argument sets that get CLOSELY more. Nothing here waits for a GPU before all is enqueued.
        """
        import torch

        called = (torch.arange(self.count, device=self.arena.view.device) + self.first) % len(self.sets)
        some = called[self._random(len(called), (TOUCHED_ELEMENTS,))]
        often = [torch.full((CLOSELY,), slot, device=called.device) for slot in closely]
        poisoned, changed = torch.cat([called, some, *often]), torch.cat([some, *often])
        for tensor in self.kernel.spec.tensors:
            view = self.layout.view(self.arena, tensor)
            if tensor.role == "output":
                element = self._random(math.prod(view.shape[1:]), (len(poisoned), 1))
                at = element * view.element_size() + torch.arange(view.element_size(), device=view.device)
                self.layout.bytes_view(self.arena, tensor)[poisoned[:, None], at] = 0xFF
                self.poisoned[tensor.name] = (poisoned[:, None], at)
            elif not tensor.values[0].startswith("given:"):  # single elements would break what only its generator keeps
                where = [self._random(extent, changed.shape) for extent in view.shape[1:]]
                values = torch.empty(len(changed), dtype=view.dtype, device=view.device)
                draw(values, tensor.values[0], self.workload, self.rng)
                view.index_put_((changed % len(view), *where), values)
        if self.cache == "cold" and self.compares:
            self._remember_in_place(called)
        self.synchronize()

    def _random(self, limit: int, shape: tuple[int, ...]) -> torch.Tensor:
        """int64 `shape` on the device, each below `limit`."""
        import torch

        return torch.randint(0, limit, shape, generator=self.rng, device=self.arena.view.device)

    def _remember_in_place(self, called: torch.Tensor) -> None:
        """Note a few elements of what calls update in place: there is no output to poison."""
        self.before.clear()
        for tensor in self.kernel.spec.tensors:
            if tensor.role == "inout":
                view = self.layout.view(self.arena, tensor)
                slots = called[:, None].expand(len(called), PROBED_ELEMENTS)
                at = (slots, *(self._random(extent, slots.shape) for extent in view.shape[1:]))
                self.before.append((view, at, view[at].clone()))

    def changed_share(self) -> float:
        """Share of the argument sets where a call has changed some of the elements that were noted.

        Those that it left as they were count as changed where that is right: an in-place softmax of what has become even
        changes nothing. A few are looked at for all.
        """
        import torch

        found = torch.stack([(view[at] != then).any(dim=1) for view, at, then in self.before]).any(dim=0)
        if bool(found.all()):
            return 1.0
        idle = torch.nonzero(~found).flatten().tolist()
        looked_at = random.sample(idle, min(FIXED_POINTS, len(idle)))
        wrong = sum(not self._rightly_unchanged(number) for number in looked_at) / len(looked_at)
        return 1 - len(idle) / len(found) * wrong

    def _rightly_unchanged(self, number: int) -> bool:
        """Whether a call must leave the noted elements of the set that the sample called as the `number`-th so."""
        slot = (self.first + number) % len(self.sets)
        right = expected(self.kernel, self.workload, self._snapshot((slot,))[slot])
        updated = [tensor for tensor in self.kernel.spec.tensors if tensor.role == "inout"]
        for tensor, (_, (_, *where), then) in zip(updated, self.before, strict=True):
            at = tuple(index[number] for index in where)
            one = Expected(right[tensor.name].value[at], right[tensor.name].tolerance[at], "")
            if judge(then[number], one, self.kernel.spec.dtype(tensor, self.workload))[1]:
                return False
        return True

    def unwritten(self) -> str:
        """Where poison is left, or "". Of integers it may be right, -1; a float is not a NaN of all ones by chance."""
        for tensor in self.kernel.spec.tensors:
            if tensor.name not in self.poisoned or "float" not in self.kernel.spec.dtype(tensor, self.workload):
                continue
            raw = self.layout.bytes_view(self.arena, tensor)
            left = int((raw[self.poisoned[tensor.name]] == 0xFF).all(dim=1).sum())
            if left:
                return f"{left} elements of {tensor.name} were not written"
        return ""

    def require_written(self) -> None:
        """Raises WorkerFailure where poison is left."""
        if left := self.unwritten():
            raise WorkerFailure(Outcome.CHEATED, f"skipped work while it was timed: {left}")

    def sample(self, side: Side) -> None:
        """One sample of one side; the caller has stopped the others."""
        self.move_on(side.calls)
        self.disturb()
        answer, outside = self._run(side, side.repeat)
        inside = _seconds(answer)
        if inside > outside * 1.01 + 1e-4:
            raise WorkerFailure(Outcome.CHEATED, "its clock says more seconds than have passed")
        self.require_written()
        if self.before:
            side.changed.append(self.changed_share())
        side.seconds.append(inside / side.repeat / side.calls)
        side.lacking.append(outside - inside)

    def long_sample(self, side: Side) -> float:
        """Seconds per call by our clock, of a request so long that the pipe's latency does not matter."""
        calls = side.calls
        if self.cache == "cold":  # the same few again would be warm
            calls = max(calls, min(len(self.sets), math.ceil(LONG_S / side.pace_s)))
        self.move_on(calls)
        self.restore()
        self.disturb()
        repeat = max(side.repeat, math.ceil(LONG_S / (side.pace_s * calls)))
        _, outside = self._run(side, repeat)
        self.require_written()
        return outside / repeat / calls

    def require_equal_calls(self, side: Side) -> None:
        """Hot: requests that follow at once, of four times as many calls, make no call cheap. Raises WorkerFailure."""
        seconds = [_seconds(self._run(side, 4 * side.repeat)[0]) for _ in range(8)]
        least = min(seconds) / 4 / side.repeat / side.calls
        if least < CHEAP * min(side.seconds):
            raise WorkerFailure(
                Outcome.CHEATED,
                f"skipped work while it was timed: a call takes {min(side.seconds) * 1e6:.2f} us after a pause and "
                f"{least * 1e6:.2f} us without one",
            )

    def check(self, side: Side) -> Check:
        """Snapshot some argument sets, let the side run as it does for a sample, and look at those sets."""
        name = f"unannounced, {self.cache}"
        if self.pristine and self.cache == "hot":
            return Check(workload=self.workload.label, name=f"{name}: in place, checked in the cold case", passed=True)
        self.move_on(side.calls)
        most = max(1, min(4, CHECKED_BYTES // max(sum(self.layout.sizes.values()), 1)))
        picked = random.sample(range(self.count), min(most, self.count))
        slots = tuple((self.first + at) % len(self.sets) for at in picked)
        if self.cache == "cold":
            return self._look(side, slots, name)
        looks: list[Check] = []
        while len(looks) < (HOT_LOOKS if all(look.passed for look in looks) else HOT_LOOKS_AT_MOST):
            looks.append(self._look(side, slots, name))
            failed = [look for look in looks if not look.passed]
            if len(failed) > 1:
                return failed[0]
        return next(look for look in looks if look.passed)

    def _look(self, side: Side, slots: tuple[int, ...], name: str) -> Check:
        """One look at some argument sets after they were changed, and poisoned, for calls that nobody announced."""
        self.restore()
        self.disturb(slots)
        if self.cache == "hot":
            inputs = self._disturb_while_running(side, slots)
        else:
            inputs = self._snapshot(slots)
            self._run(side, side.repeat)
        if left := self.unwritten():
            return Check(workload=self.workload.label, name=name, passed=False, message=left)
        for slot in slots:
            check = self.bench.check_outputs(slot, expected(self.kernel, self.workload, inputs[slot]), name)
            if check.passed:
                check = self.bench.check_inputs(slot, inputs[slot], name)
            if not check.passed:
                return check
        return check

    def _snapshot(self, slots: tuple[int, ...]) -> dict[int, dict[str, torch.Tensor]]:
        tensors = [t for t in self.kernel.spec.tensors if t.role != "output"]
        copies = {slot: {t.name: self.bench.read(slot, t).clone() for t in tensors} for slot in slots}
        self.synchronize()
        return copies

    def _disturb_while_running(self, side: Side, slots: tuple[int, ...]) -> dict[int, dict[str, torch.Tensor]]:
        """A long sample of calls with the same arguments, in the middle of which they change; returns the last inputs.

        A sample that ends before the change is followed by one of so many more calls that it cannot: calls that cost
        nothing once their burst has begun are what this is to find.
        """
        pace_s, lasting_s = side.pace_s, LOOK_S
        for _ in range(5):
            repeat = max(side.repeat, math.ceil(lasting_s / (pace_s * side.calls)))
            foreseen_s = repeat * pace_s * side.calls
            inputs: dict[int, dict[str, torch.Tensor]] = {}
            changed_at = math.inf

            def change(delay_s: float, inputs: dict[int, dict[str, torch.Tensor]]) -> None:
                nonlocal changed_at
                time.sleep(delay_s)
                self.disturb(slots)
                inputs.update(self._snapshot(slots))
                changed_at = time.perf_counter()

            delay_s = foreseen_s * random.uniform(0.1, 0.7)
            meanwhile = threading.Thread(target=change, args=(delay_s, inputs))
            meanwhile.start()
            try:
                _, outside = self._run(side, repeat)
                answered_at = time.perf_counter()
            finally:
                meanwhile.join()
            if answered_at - changed_at > 3 * side.pace_s + 1e-3:
                return inputs
            pace_s = max(outside / repeat / side.calls, pace_s / 100)
            lasting_s *= 2
        # The machine is too busy to change anything in time: an ordinary sample has to do.
        self._run(side, side.repeat)
        return inputs


def _seconds(answer: dict) -> float:
    value = answer.get("seconds")
    if not isinstance(value, float) or not 0 <= value < 3600:
        raise WorkerFailure(Outcome.CHEATED, f"its clock answered {value!r}")
    return max(value, 1e-9)


def _blame(found: Check) -> Outcome:
    """Of an unannounced check that failed: an accident of rounding is no fraud, and a repair may mend it."""
    return Outcome.INCORRECT if 0 < found.error <= NEAR_MISS else Outcome.CHEATED


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


def run(
    contest: Contest, sides: list[Side], *, check: tuple[str, ...] = (), blocks: tuple[int, int] | None = None
) -> Result:
    """Blocks of one sample of each side, in an order that is drawn anew, until the intervals are narrow.

    `sides[0]` is what the others are compared with. Sides named in `check` are looked at unannounced.
    Raises SideFailure naming the contestant that failed.
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
            raise SideFailure(side.name, _blame(found), f"wrong while it was timed: {found.message}")

    contest.compares = len(sides) > 1
    try:
        for side in sides:
            alone(side, contest.prepare)
        for side in sides:
            alone(side, lambda side: contest.settle(side, sides[0]))
        looks = {side.name: set(rng.sample(range(least + 1), protocol.checks)) for side in sides if side.name in check}
        began = time.monotonic()
        for block in range(most):
            if contest.pristine and block % 4 == 0:
                contest.restore()
            for side in rng.sample(sides, len(sides)):
                if block in looks.get(side.name, ()):
                    look(side)
                alone(side, contest.sample)
            late = time.monotonic() - began > protocol.patience_s
            if block + 1 >= least and (late or _narrow(sides, protocol.width)):
                break
        for side in sides:
            if least in looks.get(side.name, ()):
                look(side)
        for side in sides[1:]:
            if statistics.median(_ratios(sides[0], side)) > 1 + MARGIN[contest.device] / 2:
                _confirm(contest, sides[0], side, alone)
        for side in sides[1:]:
            _doubt(contest, sides[0], side, alone)
    finally:
        for side in sides:
            side.worker.proceed()
    first = sides[0]
    return Result(
        {side.name: statistics.median(side.seconds) * 1e6 for side in sides},
        {side.name: _ratios(first, side) for side in sides},
        checks,
        len(first.seconds),
        {side.name: side.graph for side in sides},
    )


def _ratios(first: Side, side: Side) -> list[float]:
    return _paired(first.seconds, side.seconds)


def _paired(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _narrow(sides: list[Side], width: float) -> bool:
    intervals = [median_interval(_ratios(sides[0], side)) for side in sides[1:]] or [
        median_interval([s / statistics.median(sides[0].seconds) for s in sides[0].seconds])
    ]
    return all((interval.high - interval.low) / interval.median < width for interval in intervals)


def _confirm(contest: Contest, first: Side, side: Side, alone: Callable[[Side, Callable[[Side], Any]], Any]) -> None:
    """Believe our clock where the side's own claims more.

    Its times are scaled to the ratio of long samples: a clock that runs 10 % slow stays within what the pipe takes of a
    short one. One pair of them is enough where it bears the claim out, as it mostly does for an honest side: it can then
    neither accuse nor take away more than half of the margin. Where others interrupt long samples, on a CPU, one pair in
    a few bears out whatever is claimed, and others take away what is true: there our clock's times of the short samples
    replace the side's own first, and nothing is taken away that the short ones show even with the pipe counted in.
    Done even where a case by itself says nothing: the suite adds cases up.
    """
    claimed = median_interval(_ratios(first, side))
    ours, longer = [], []
    for _ in range(3):
        of_first, of_side = alone(first, contest.long_sample), alone(side, contest.long_sample)
        ours.append(of_first / of_side)
        longer.append(of_side)
        borne_out = claimed.median <= ours[0] * (1 + MARGIN[contest.device] / 2)
        if borne_out and longer[0] >= CHEAPENED * min(side.seconds):
            break
    if max(longer) < CHEAPENED * min(side.seconds):
        raise SideFailure(
            side.name,
            Outcome.CHEATED,
            f"skipped work while it was timed: a call takes {min(side.seconds) * 1e6:.2f} us in short samples and "
            f"{max(longer) * 1e6:.2f} us in long ones",
        )
    if contest.device == "cpu" and contest.cache == "hot":
        alone(side, contest.require_equal_calls)
    # The short samples by our clock. The pipe takes at least so much of each, for a side that hurries there nothing.
    pipe_s = min(first.lacking)
    shown = _paired(_outside(first, pipe_s), _outside(side, pipe_s))
    certain = statistics.median(_paired(_outside(first, pipe_s), _outside(side, 0.0)))
    if claimed.low > FORGED * max(*ours, statistics.median(shown)):
        raise SideFailure(
            side.name,
            Outcome.CHEATED,
            f"its clock says {claimed.median:.2f}x in short samples, ours {statistics.median(ours):.2f}x in long ones",
        )
    if contest.device == "cpu" and claimed.median > statistics.median(shown) * (1 + MARGIN["cpu"] / 2):
        side.seconds = [seconds / ratio for seconds, ratio in zip(first.seconds, shown, strict=True)]
    scale = statistics.median(_ratios(first, side)) / max(statistics.median(ours), certain)
    if scale > 1:
        side.seconds = [seconds * scale for seconds in side.seconds]


def _outside(side: Side, pipe_s: float) -> list[float]:
    """Seconds per call of each sample by our clock, less what the pipe is thought to take of one."""
    calls = side.repeat * side.calls
    return [max(s + (lacking - pipe_s) / calls, 1e-9) for s, lacking in zip(side.seconds, side.lacking, strict=True)]


def _is_borne_out_among_others(
    contest: Contest, first: Side, side: Side, alone: Callable[[Side, Callable[[Side], Any]], Any]
) -> bool:
    """Whether somebody else is at work on the device, and long samples stretch the side's times no more than the first one's.

    A GPU gives processes slices of some milliseconds in turns. A sample that fits in one is as long as ever by the clock
    of its side, and by ours it waits for the slices of others, one side at every sample for longer than the other.
    """
    stretched: dict[str, list[float]] = {first.name: [], side.name: []}
    for _ in range(3):
        for one in (first, side):
            stretched[one.name].append(alone(one, contest.long_sample) / statistics.median(one.seconds))
    usual, own = (statistics.median(stretched[one.name]) for one in (first, side))
    allowed = 1 + contest.protocol.clock_share
    return usual > allowed and own <= usual * allowed


def _doubt(contest: Contest, first: Side, side: Side, alone: Callable[[Side, Callable[[Side], Any]], Any]) -> None:
    """A worker that lacks calls, or whose clock lacks more against ours than the baseline's does, is not believed."""
    idle = statistics.fmean(first.changed) - statistics.fmean(side.changed) if side.changed else 0.0
    if idle > UNCHANGED_SHARE:
        raise SideFailure(
            side.name,
            Outcome.CHEATED,
            f"skipped work while it was timed: {idle:.0%} more of its calls than of the baseline's changed nothing",
        )
    sample = statistics.median(side.seconds) * side.repeat * side.calls
    # The smallest of all samples: on a busy machine the wake-up of a worker costs milliseconds, but not every time.
    lacking, usual = min(side.lacking), min(first.lacking)
    for _ in range(MORE_DOUBTS):
        if lacking - usual <= PIPE_S + contest.protocol.clock_share * sample:
            return
        alone(side, contest.sample)
        lacking = min(lacking, side.lacking.pop())
        side.seconds.pop()
    if _is_borne_out_among_others(contest, first, side, alone):
        return
    raise SideFailure(
        side.name,
        Outcome.CHEATED,
        f"its clock lacks {(lacking - usual) * 1e3:.2f} ms of a sample of {sample * 1e3:.2f} ms against ours",
    )
