"""How long: samples of several sides taken in turn, each side in its own worker, on one device, each call between its neighbours.

What a sample is stands in sampling.py. A candidate that is FASTER by its own clock must be so by ours. While one side is
timed the others are stopped, as every process is that nobody asks.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

from harness.processes.worker import WorkerFailure
from harness.records import Check, Interval, Outcome
from harness.timing import load
from harness.timing.comparison import CONFIDENCE, MARGIN, median_interval, series_interval, split
from harness.timing.sampling import LEAST_SHARE, ONE_THREAD, PAIR, PROTOCOLS, ABComparison, Arm, ArmFailure

Returned = TypeVar("Returned")
CHECKED_BYTES = {"cuda": 8 << 20, "cpu": 1 << 20}
"""A call is looked at after each sample where its tensors take less than this, or the side seems to be faster than the
first one, else after CHECKS of the fewest samples that there may be, and of as many that follow."""
CHECKS = 3
OTHERS = 2
"""Samples of other distributions in a comparison, of large calls one: at blocks that nobody knows before."""
FORGED = 1.25
"""A side whose clock claims so much more than ours shows is accused; less is corrected, for it may be noise."""
ACCUSING_PAIRS = 9
"""Pairs of long samples before a clock is accused; their finding is taken off a side's times whether or not it is
accused."""
PIPE_S = 5e-4
"""Scheduling of two processes may cost this much of a sample before we doubt a worker's clock."""
LONG_S = 0.015
"""A request that outlasts the slices in which a GPU serves processes in turns, and of which the pipe's latency is some 1 %."""
CONFIRM_S = {"cuda": LONG_S / 2, "cpu": LONG_S}
"""The samples by which our own clock confirms FASTER, where all of a call is the side's own. On a GPU each is one request, and what the pipe
took of the first side's quickest one is taken off both sides'."""
CLOSE = {"cuda": 1.02, "cpu": 1.25}
"""Sides of which the fastest is wanted are timed further where their pace is within this of the best, neighbours included: of a few warm
samples of a GPU's chain the quickest vary by less, and a CPU's on which others are at work by more."""
LEAST_OWN = 0.2
"""Share of a call's time that is its own (lower bound): no sample takes longer than this asks for."""
CPU_SHARE, MORE_WAITS, CALMER = 1.25, 1.5, 0.8
"""CPU time decides where a call's is at most so many times its shortest time by the clock (what the process does about a request is among it), all of
it is one thread's, a request has at most so many waits more than the first arm's (1 to 4, by chance), and the
interval is so much narrower. Beside eight busy processes on two cores samples of 60 ms differed by 15 to 70 % by the clock and by
3 to 8 % by CPU time."""
CORE_BLOCKS = 4
"""Blocks after which sides that share a core go to another: one may be busy, and each new one has its caches and clock to warm."""
MORE_DOUBTS = 24
"""Samples more before a clock is accused: few were taken for a search, and none may have been uninterrupted."""


def describe(device: str) -> str:
    """The protocol in words, for the report."""
    protocol = PROTOCOLS[device]
    how = (
        "CUDA graphs of calls, each between a kernel that writes its inputs and one that reads its outputs, whose own time "
        "is subtracted; cold: the cache is evicted in between"
        if device == "cuda"
        else "calls in a row on inputs that were written just before, each once; cold: rotating through "
        f"{protocol.cache_factor:g} times the last-level cache"
    )
    return (
        f"{how}; {protocol.blocks[0]} to {protocol.blocks[1]} blocks of one sample a side in random order, each side in a "
        f"process of its own and the others stopped; median of the ratio with its {CONFIDENCE:.0%} interval, FASTER beyond "
        f"a margin of {MARGIN[device]:.0%}"
    )


@dataclass
class ComparisonTimes:
    """Times of one comparison: seconds per call of each side, the ratios to the first side, and the checks that were made."""

    median_us: dict[str, float]
    ratios: dict[str, list[float]]
    """side -> first side's time / its time, one for each block, the neighbours' time taken off both."""
    checks: dict[str, list[Check]]
    samples: int
    graph: dict[str, bool]
    raw: dict[str, list[float]]
    """side -> seconds per call with its neighbours, by block."""
    others: float = 0.0
    """Share of the CPU that other processes took meanwhile."""
    cpu: dict[str, list[float]] = field(default_factory=dict)
    """side -> seconds of CPU time per call, by block (Arm.cpu)."""
    by_cpu: bool = False
    """Whether the ratios are of CPU time, at least in part."""
    seconds: float = 0.0
    """What all of it took."""
    lengths: tuple[int, ...] = ()
    """Samples of each series, which is a comparison in processes of its own."""
    by_series: bool = False
    """Whether series are what repeats, and samples of one are alike: on a CPU that others use as well."""

    def __post_init__(self) -> None:
        self.lengths = self.lengths or (self.samples,)

    def speedup(self, name: str) -> Interval:
        return self.interval(self.ratios[name])

    def interval(self, ratios: list[float]) -> Interval:
        """Of ratios of which each sample has one."""
        return series_interval(split(ratios, self.lengths)) if self.by_series else median_interval(ratios)

    def net(self, name: str) -> list[float]:
        """Seconds per call of each sample of a side, without its neighbours'."""
        return _without(self.raw[name], self.raw.get(PAIR))

    def join(self, other: ComparisonTimes) -> ComparisonTimes:
        """Both comparisons of the same sides as one."""
        share = self.samples / (self.samples + other.samples)
        return ComparisonTimes(
            {name: share * us + (1 - share) * other.median_us[name] for name, us in self.median_us.items()},
            {name: [*ratios, *other.ratios[name]] for name, ratios in self.ratios.items()},
            {name: [*checks, *other.checks[name]] for name, checks in self.checks.items()},
            self.samples + other.samples,
            {name: graph and other.graph[name] for name, graph in self.graph.items()},
            {name: [*seconds, *other.raw[name]] for name, seconds in self.raw.items()},
            max(self.others, other.others),
            {name: [*shares, *other.cpu[name]] for name, shares in self.cpu.items()},
            self.by_cpu or other.by_cpu,
            self.seconds + other.seconds,
            (*self.lengths, *other.lengths),
            self.by_series or other.by_series,
        )


def run(
    comparison: ABComparison,
    arms: list[Arm],
    *,
    pair: Arm | None = None,
    check: tuple[str, ...] = (),
    blocks: tuple[int, int] | None = None,
    confirm: bool = True,
    turned: bool = False,
) -> ComparisonTimes:
    """Blocks of one sample of each side, in an order that is drawn anew, until the intervals are narrow.

    `sides[0]` is what the others are compared with. Calls of the sides named in `check` are looked at. `pair`: the side
    whose time is taken off all others'. Without `confirm` a side that seems to be faster is held against our clock by the samples that
    there are, without long ones: in a comparison that decides nothing. `turned`: the last side is prepared first. Raises ArmFailure naming the contestant that failed.
    """
    protocol = comparison.protocol
    least, most = blocks or protocol.blocks
    rng, others_at_work = random.Random(secrets.randbits(64)), load.LoadWatch()
    everyone: list[Arm] = [*(reversed(arms) if turned else arms), *([pair] if pair else [])]
    start = time.monotonic()

    small = comparison.kernel.spec.read_bytes(comparison.workload) <= CHECKED_BYTES[comparison.device]
    looks = {name: _spread(least, most) for name in check}
    others = {name: set(random.sample(range(least), OTHERS if small else 1)) for name in check}
    for arm in everyone:
        if arm is not comparison.pair:
            _blaming(arm, comparison.prepare)
        else:  # it has its plan of this comparison from the run before
            arm.forget(all_=True)
    for arm in arms:
        _blaming(arm, lambda side: comparison.settle(side, arms[0]))
    began = time.monotonic()
    for block in range(most):
        if block and block % protocol.replan == 0:
            for arm in everyone:
                _blaming(arm, comparison.plan_again)
        if block % CORE_BLOCKS == 0:
            comparison.share_core(arms)
        ahead = [arm.name for arm in arms[1:] if block and _seems_ahead(comparison, arms[0], arm, pair)]
        for arm in rng.sample(everyone, len(everyone)):
            look = arm.name in check and (small or block in looks[arm.name] or arm.name in ahead)
            _blaming(arm, functools.partial(comparison.sample, look=look))
            if arm.name in check and block in others[arm.name]:
                _blaming(arm, comparison.sample_of_others)
        late = time.monotonic() - began > protocol.patience_s
        if block + 1 >= least and (late or _narrow(arms, pair, protocol.width, protocol.far_apart)):
            break
    gaining = [arm.name for arm in arms[1:] if _seems_ahead(comparison, arms[0], arm, pair)]
    for arm in arms[1:]:
        if arm.name in gaining:
            if confirm:
                _confirm(comparison, arms[0], arm, pair, look=arm.name in check, others=others_at_work)
            else:
                _correct(comparison, arms[0], arm)
    for arm in arms[1:]:
        believed = _doubt(comparison, arms[0], arm, others=others_at_work)
        if not believed and arm.name not in gaining:
            _correct(comparison, arms[0], arm)
    for arm in arms:
        if arm.name in check:
            _blaming(arm, comparison.look_at_new_constants)
    checks = {arm.name: [_blaming(arm, comparison.finish)] if arm.name in check else [] for arm in arms}
    comparison.part_cores(arms)
    by_cpu = _is_known_by_cpu(arms, pair)
    first, share = arms[0], others_at_work.share()
    return ComparisonTimes(
        {arm.name: statistics.median(_net(arm, pair)) * 1e6 for arm in arms},
        {arm.name: _paired(first.cpu, arm.cpu) if by_cpu else _ratios(first, arm, pair) for arm in arms},
        checks,
        len(first.seconds),
        {arm.name: arm.graph for arm in arms},
        {arm.name: list(arm.seconds) for arm in everyone},
        share,
        {arm.name: list(arm.cpu) for arm in everyone},
        by_cpu,
        time.monotonic() - start,
        (len(first.seconds),),
        comparison.device == "cpu" and share >= load.DISTURBED,
    )


def find_fastest_us(comparison: ABComparison, arms: list[Arm], pair: Arm | None, blocks: int) -> float:
    """Least microseconds a call of sides of ours, whose clocks nobody doubts: the median of so many samples, its neighbours' time taken off.

    They may share a process, so each is planned anew before it is timed further; who is clearly slower when warm is not. Raises ArmFailure.
    """
    if pair is not None and pair is not comparison.pair:
        _blaming(pair, comparison.prepare)
    for arm in arms:  # the clocks have risen with the first
        _blaming(arm, lambda side: comparison.prepare(side, 4 if side is arms[0] else 2))
    most, found = CLOSE[comparison.device] * min(arm.pace_s for arm in arms), []
    for arm in (arm for arm in arms if arm.pace_s <= most):
        _blaming(arm, comparison.plan)
        together = [arm, *([pair] if pair else [])]
        for one in together:
            one.forget(all_=True)
        for _ in range(blocks):
            for one in together:
                _blaming(one, comparison.sample)
        found.append(statistics.median(_net(arm, pair)))
    return min(found) * 1e6


def _blaming(arm: Arm, action: Callable[[Arm], Returned]) -> Returned:
    """What the action makes of the side. Raises ArmFailure where its worker fails."""
    try:
        return action(arm)
    except WorkerFailure as failure:
        raise ArmFailure(arm.name, failure.outcome, failure.reason) from None


def _spread(least: int, most: int) -> set[int]:
    """The blocks in which a large call is looked at: CHECKS of each `least`, up to the last that there may be."""
    return {first + at for first in range(0, most, least) for at in random.sample(range(least), min(CHECKS, least))}


def _seems_ahead(comparison: ABComparison, first: Arm, arm: Arm, pair: Arm | None) -> bool:
    """Whether a side is faster than the first by more than noise: then it has to show more."""
    ratios = [
        _ratios(first, arm, pair),
        *([_paired(first.cpu, arm.cpu)] if _is_known_by_cpu([first, arm], pair) else []),
    ]
    return max(map(statistics.median, ratios)) > 1 + MARGIN[comparison.device] / 2


def _net(arm: Arm, pair: Arm | None) -> list[float]:
    """Seconds per call of each sample, without its neighbours' of the same block."""
    return _without(arm.seconds, None if pair is None else pair.seconds)


def _without(seconds: list[float], neighbours: list[float] | None) -> list[float]:
    if neighbours is None:
        return seconds
    return [max(own - near, LEAST_SHARE * near) for own, near in zip(seconds, neighbours, strict=True)]


def _ratios(first: Arm, arm: Arm, pair: Arm | None = None) -> list[float]:
    return _paired(_net(first, pair), _net(arm, pair))


def _paired(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _is_known_by_cpu(arms: list[Arm], pair: Arm | None) -> bool:
    """Whether CPU time, which the parent reads of the kernel, says more of the arms than the clock does.

    On a CPU that others use as well a sample's time is mostly theirs; the CPU time that a process took is its own. It says nothing of what
    threads share, and nothing of who sleeps: each arm must have done all its work in one thread, without waits that the first has not.
    """
    if pair is not None or len(arms) < 2 or not all(map(_works_alone, arms)):
        return False
    first, *others = arms
    if any(statistics.median(arm.waits) > statistics.median(first.waits) + MORE_WAITS for arm in others):
        return False
    by_cpu, by_clock = (
        max(_width(median_interval(ratios(first, arm))) for arm in others)
        for ratios in (lambda one, other: _paired(one.cpu, other.cpu), _ratios)
    )
    return by_cpu < CALMER * by_clock


def _works_alone(arm: Arm) -> bool:
    """Whether one thread did all its work, and the time that requests take of a core beside the calls does not matter."""
    if not all(taken > 0 and other <= ONE_THREAD * taken for taken, other in zip(arm.cpu, arm.others_cpu, strict=True)):
        return False
    return bool(arm.cpu) and statistics.median(arm.cpu) <= CPU_SHARE * min(arm.seconds)


def _narrow(arms: list[Arm], pair: Arm | None, width: float, far_apart: float = 0.0) -> bool:
    """Whether more samples would say nothing more: every side beside the first is known to `width`, or every two sides to
    the share `far_apart` of what lies between them."""
    own = _net(arms[0], pair)
    if len(arms) == 1:
        return _width(median_interval([seconds / statistics.median(own) for seconds in own])) < width
    if all(_width(median_interval(_ratios(arms[0], arm, pair))) < width for arm in arms[1:]):
        return True
    between = [median_interval(_ratios(one, other, pair)) for one, other in itertools.combinations(arms, 2)]
    return all(_width(found) < max(width, far_apart * abs(math.log(found.median))) for found in between)


def _width(interval: Interval) -> float:
    return (interval.high - interval.low) / interval.median


def _confirm(
    comparison: ABComparison,
    first: Arm,
    arm: Arm,
    pair: Arm | None,
    *,
    look: bool = False,
    others: load.LoadWatch | None = None,
) -> None:
    """Believe our clock where the side's own claims more.

    Its times are scaled to the ratio of long samples: a clock that runs 10 % slow stays within what the pipe takes of a
    short one. One pair of them is enough where it bears the claim out, as it mostly does for an honest side: it can then
    neither accuse nor take away more than half of the margin. The less of a call is the side's own, the longer they are:
    a clock slowed by four thousandths is four hundredths of what stands between neighbours that take nine tenths. Where
    others interrupt long samples, on a CPU, one pair in a few bears out whatever is claimed, and others take away what
    is true: there our clock's times of the short samples replace the side's own first, and nothing is taken away that
    the short ones show even with the pipe counted in.
    Done even where a case by itself says nothing: the suite adds cases up. `look` at the side's long samples, too: who did
    them quickly and wrong had whatever it claims borne out.
    """
    share = max(statistics.median(_net(arm, pair)) / statistics.median(arm.seconds), LEAST_OWN)
    long_s = CONFIRM_S[comparison.device] / share
    # The pipe takes at least so much of each request, for a side that hurries there nothing.
    pipe_s = min(first.lacking)

    def long_pair() -> float:
        shown = _blaming(first, lambda first: comparison.long_sample(first, long_s, pipe_s=pipe_s))
        return shown / _blaming(arm, lambda side: comparison.long_sample(side, long_s, look=look, pipe_s=pipe_s))

    claimed = median_interval(_ratios(first, arm))
    ours: list[float] = []
    while len(ours) < 3 and (not ours or claimed.median > ours[0] * (1 + MARGIN[comparison.device] / 2)):
        ours.append(long_pair())
    # The short samples by our clock.
    shown = _paired(_outside(first, pipe_s), _outside(arm, pipe_s))
    certain = statistics.median(_paired(_outside(first, pipe_s), _outside(arm, 0.0)))
    # Where others are at work most requests wait, and of calls that are few a request most of the time is that. Whose quickest
    # one bears its clock out is not accused, though not believed either: who forges has none.
    quickest = statistics.median(first.seconds) / max(arm.quickest_s - pipe_s / arm.calls, _least(arm))
    borne_out = max(quickest, statistics.median(shown))
    # Nobody is accused by three pairs: there all of them have come out short for an honest side.
    while (forged := claimed.low > FORGED * max(*ours, borne_out)) and len(ours) < ACCUSING_PAIRS:
        ours.append(long_pair())
    if forged and (not _is_disturbed(comparison, others) or _took_more_cpu(comparison, first, arm)):
        raise ArmFailure(
            arm.name,
            Outcome.CHEATED,
            f"its clock says {claimed.median:.2f}x in short samples, ours {statistics.median(ours):.2f}x in long ones",
        )
    if comparison.device == "cpu" and claimed.median > statistics.median(shown) * (1 + MARGIN["cpu"] / 2):
        arm.seconds = [seconds / ratio for seconds, ratio in zip(first.seconds, shown, strict=True)]
    scale = statistics.median(_ratios(first, arm)) / max(statistics.median(ours), certain)
    if scale > 1:
        arm.seconds = [seconds * scale for seconds in arm.seconds]


def _correct(comparison: ABComparison, first: Arm, arm: Arm) -> None:
    """Scale a side's times to what our clock shows of the same samples, where all of that is less than its own claims."""
    pipe_s = min(first.lacking)
    shown = median_interval(_paired(_outside(first, pipe_s), _outside(arm, pipe_s)))
    claimed = statistics.median(_ratios(first, arm))
    if claimed > shown.high * (1 + MARGIN[comparison.device] / 2):
        arm.seconds = [seconds * claimed / shown.median for seconds in arm.seconds]


def _outside(arm: Arm, pipe_s: float) -> list[float]:
    """Seconds per call of each sample by our clock, less what the pipe is thought to take of one."""
    return [
        max(s + (lacking - pipe_s) / arm.calls, _least(arm))
        for s, lacking in zip(arm.seconds, arm.lacking, strict=True)
    ]


def _least(arm: Arm) -> float:
    """Seconds per call: of a request of which the pipe took nearly all, our clock cannot say that its calls took less."""
    return LEAST_SHARE * min(s + taken / arm.calls for s, taken in zip(arm.seconds, arm.lacking, strict=True))


def _is_borne_out_among_others(comparison: ABComparison, first: Arm, arm: Arm) -> bool:
    """Whether somebody else is at work on the device, and long samples stretch the side's times no more than the first one's.

    A GPU gives processes slices of some milliseconds in turns. A sample that fits in one is as long as ever by the clock
    of its side, and by ours it waits for the slices of others, one side at every sample for longer than the other.
    """
    stretched: dict[str, list[float]] = {first.name: [], arm.name: []}
    for _ in range(3):
        for one in (first, arm):
            long = _blaming(one, lambda one: comparison.long_sample(one, LONG_S))
            stretched[one.name].append(long / statistics.median(one.seconds))
    usual, own = (statistics.median(stretched[one.name]) for one in (first, arm))
    allowed = 1 + comparison.protocol.clock_share
    return usual > allowed and own <= usual * allowed


def _is_disturbed(comparison: ABComparison, *watched: load.LoadWatch | None) -> bool:
    """Whether other processes took so much of the CPU that a request may wait for a core as long as it takes: then our clock says nothing
    against a worker's."""
    return comparison.device == "cpu" and any(one.share() >= load.DISTURBED for one in watched if one)


def _took_more_cpu(comparison: ABComparison, first: Arm, arm: Arm, *, all_threads: bool = False) -> bool:
    """Whether its first thread, which makes the calls, or all threads took more CPU time than its clock says has passed.

    The kernel counts it, and counts nothing while a thread waits for a core. Where it is less for all threads, no work is left that the
    clock could have left out; where it is more for one, the clock is wrong.
    """

    def beyond(one: Arm) -> float:
        threads = [0.0] * len(one.cpu) if all_threads else one.others_cpu
        known = zip(one.cpu, threads, one.seconds, strict=True)
        return statistics.median((taken - other - own) * one.calls for taken, other, own in known)

    if not (arm.cpu and first.cpu and min(arm.cpu) > 0):
        return all_threads
    allowed = PIPE_S + comparison.protocol.clock_share * statistics.median(arm.seconds) * arm.calls
    return beyond(arm) - max(0.0, min(beyond(first), PIPE_S)) > allowed


def _doubt(comparison: ABComparison, first: Arm, arm: Arm, *, others: load.LoadWatch | None = None) -> bool:
    """Whether to believe a worker's clock, which may lack no more against ours than the baseline's does. Raises ArmFailure where it forges.

    On a CPU that others use it is accused by its CPU time alone: a request that waits for a core lengthens ours alone: an honest one
    lacked 4 ms of 6 beside a load of 6 to 9 on two cores. Where CPU time cannot tell, as of threads that work side by side, it is neither accused nor believed.
    """
    sample, doubting = statistics.median(arm.seconds) * arm.calls, load.LoadWatch()
    # The smallest of all samples: on a busy machine the wake-up of a worker costs milliseconds, but not every time.
    lacking, usual = min(arm.lacking), min(first.lacking)
    for _ in range(MORE_DOUBTS):
        if lacking - usual <= PIPE_S + comparison.protocol.clock_share * sample:
            return True
        _blaming(arm, comparison.sample)
        lacking = min(lacking, arm.lacking[-1])
        arm.forget()
    if _is_borne_out_among_others(comparison, first, arm):
        return True
    if _is_disturbed(comparison, others, doubting) and not _took_more_cpu(comparison, first, arm):
        return not _took_more_cpu(comparison, first, arm, all_threads=True)
    raise ArmFailure(
        arm.name,
        Outcome.CHEATED,
        f"its clock lacks {(lacking - usual) * 1e3:.2f} ms of a sample of {sample * 1e3:.2f} ms against ours",
    )
