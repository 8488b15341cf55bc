"""How long: samples of several sides taken in turn, each side in its own worker, on one device, each call in company.

What a sample is stands in sampling.py. A candidate that is FASTER by its own clock must be so by ours. While one side is
timed the others are stopped, as every process is that nobody asks.
"""

from __future__ import annotations

import functools
import random
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from harness.processes.worker import WorkerFailure
from harness.records import Check, Interval, Outcome
from harness.timing import load
from harness.timing.comparison import CONFIDENCE, MARGIN, median_interval
from harness.timing.sampling import LEAST_SHARE, PROTOCOLS, Contest, Side, SideFailure

Returned = TypeVar("Returned")
CHECKED_BYTES = {"cuda": 8 << 20, "cpu": 1 << 20}
"""A call is looked at after each sample where its tensors take less than this, or the side seems to be faster than the
first one, else after CHECKS of the fewest samples that there may be, and of as many that follow."""
CHECKS = 3
OTHERS = 2
"""Samples of other distributions in a contest, of large calls one: at blocks that nobody knows before."""
FORGED = 1.25
"""A side whose clock claims so much more than ours shows is accused; less is corrected, for it may be noise."""
ACCUSING_PAIRS = 9
"""Of long samples; what they show is taken off a side's times whether or not it is accused."""
PIPE_S = 5e-4
"""Scheduling of two processes may cost this much of a sample before we doubt a worker's clock."""
LONG_S = 0.015
"""The samples by which our own clock confirms FASTER, where all of a call is the side's own; the pipe's latency is some 1 %
of this, and the same for both."""
LEAST_OWN = 0.2
"""Of a call's time: no sample takes longer than this asks for."""
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
class Result:
    """Of one contest: seconds per call of each side, the ratios to the first side, and the checks that were made."""

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

    def speedup(self, name: str) -> Interval:
        return median_interval(self.ratios[name])

    def joined(self, other: Result) -> Result:
        """Both contests of the same sides as one."""
        share = self.samples / (self.samples + other.samples)
        return Result(
            {name: share * us + (1 - share) * other.median_us[name] for name, us in self.median_us.items()},
            {name: [*ratios, *other.ratios[name]] for name, ratios in self.ratios.items()},
            {name: [*checks, *other.checks[name]] for name, checks in self.checks.items()},
            self.samples + other.samples,
            {name: graph and other.graph[name] for name, graph in self.graph.items()},
            {name: [*seconds, *other.raw[name]] for name, seconds in self.raw.items()},
            max(self.others, other.others),
        )


def run(
    contest: Contest,
    sides: list[Side],
    *,
    pair: Side | None = None,
    check: tuple[str, ...] = (),
    blocks: tuple[int, int] | None = None,
    confirm: bool = True,
) -> Result:
    """Blocks of one sample of each side, in an order that is drawn anew, until the intervals are narrow.

    `sides[0]` is what the others are compared with. Calls of the sides named in `check` are looked at. `pair`: the side
    whose time is taken off all others'. Without `confirm` sides are believed that seem to be faster: of a contest that decides
    nothing. Raises SideFailure naming the contestant that failed.
    """
    protocol = contest.protocol
    least, most = blocks or protocol.blocks
    rng, others_at_work = random.Random(secrets.randbits(64)), load.Watch()
    everyone = [*sides, *([pair] if pair else [])]

    small = contest.kernel.spec.read_bytes(contest.workload) <= CHECKED_BYTES[contest.device]
    looks = {name: _spread(least, most) for name in check}
    others = {name: set(random.sample(range(least), OTHERS if small else 1)) for name in check}
    for side in everyone:
        if side is not contest.pair:
            _blaming(side, contest.prepare)
        else:  # it has its plan of this contest from the run before
            side.seconds.clear()
            side.lacking.clear()
    for side in sides:
        _blaming(side, lambda side: contest.settle(side, sides[0]))
    began = time.monotonic()
    for block in range(most):
        if block and block % protocol.replan == 0:
            for side in everyone:
                _blaming(side, contest.plan_again)
        ahead = [side.name for side in sides[1:] if block and _seems_ahead(contest, sides[0], side, pair)]
        for side in rng.sample(everyone, len(everyone)):
            look = side.name in check and (small or block in looks[side.name] or side.name in ahead)
            _blaming(side, functools.partial(contest.sample, look=look))
            if side.name in check and block in others[side.name]:
                _blaming(side, contest.sample_of_others)
        late = time.monotonic() - began > protocol.patience_s
        if block + 1 >= least and (late or _narrow(sides, pair, protocol.width)):
            break
    for side in sides[1:]:
        if confirm and _seems_ahead(contest, sides[0], side, pair):
            _confirm(contest, sides[0], side, pair, look=side.name in check)
    for side in sides[1:]:
        _doubt(contest, sides[0], side)
    for side in sides:
        if side.name in check:
            _blaming(side, contest.look_at_new_constants)
    checks = {side.name: [_blaming(side, contest.finish)] if side.name in check else [] for side in sides}
    first = sides[0]
    return Result(
        {side.name: statistics.median(_net(side, pair)) * 1e6 for side in sides},
        {side.name: _ratios(first, side, pair) for side in sides},
        checks,
        len(first.seconds),
        {side.name: side.graph for side in sides},
        {side.name: list(side.seconds) for side in everyone},
        others_at_work.share(),
    )


def _blaming(side: Side, action: Callable[[Side], Returned]) -> Returned:
    """What the action makes of the side. Raises SideFailure where its worker fails."""
    try:
        return action(side)
    except WorkerFailure as failure:
        raise SideFailure(side.name, failure.outcome, failure.reason) from None


def _spread(least: int, most: int) -> set[int]:
    """The blocks in which a large call is looked at: CHECKS of each `least`, up to the last that there may be."""
    return {first + at for first in range(0, most, least) for at in random.sample(range(least), min(CHECKS, least))}


def _seems_ahead(contest: Contest, first: Side, side: Side, pair: Side | None) -> bool:
    """Whether a side is faster than the first by more than noise: then it has to show more."""
    return statistics.median(_ratios(first, side, pair)) > 1 + MARGIN[contest.device] / 2


def _net(side: Side, pair: Side | None) -> list[float]:
    """Seconds per call of each sample, without its neighbours' of the same block."""
    if pair is None:
        return side.seconds
    return [max(own - near, LEAST_SHARE * near) for own, near in zip(side.seconds, pair.seconds, strict=True)]


def _ratios(first: Side, side: Side, pair: Side | None = None) -> list[float]:
    return _paired(_net(first, pair), _net(side, pair))


def _paired(above: list[float], below: list[float]) -> list[float]:
    return [a / b for a, b in zip(above, below, strict=True)]


def _narrow(sides: list[Side], pair: Side | None, width: float) -> bool:
    own = _net(sides[0], pair)
    intervals = [median_interval(_ratios(sides[0], side, pair)) for side in sides[1:]] or [
        median_interval([seconds / statistics.median(own) for seconds in own])
    ]
    return all((interval.high - interval.low) / interval.median < width for interval in intervals)


def _confirm(contest: Contest, first: Side, side: Side, pair: Side | None, *, look: bool = False) -> None:
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
    share = max(statistics.median(_net(side, pair)) / statistics.median(side.seconds), LEAST_OWN)
    long_s = LONG_S / share

    def long_pair() -> float:
        shown = _blaming(first, lambda first: contest.long_sample(first, long_s))
        return shown / _blaming(side, lambda side: contest.long_sample(side, long_s, look=look))

    claimed = median_interval(_ratios(first, side))
    ours: list[float] = []
    while len(ours) < 3 and (not ours or claimed.median > ours[0] * (1 + MARGIN[contest.device] / 2)):
        ours.append(long_pair())
    # The short samples by our clock. The pipe takes at least so much of each, for a side that hurries there nothing.
    pipe_s = min(first.lacking)
    shown = _paired(_outside(first, pipe_s), _outside(side, pipe_s))
    certain = statistics.median(_paired(_outside(first, pipe_s), _outside(side, 0.0)))
    # Where others are at work most requests wait, and of calls that are few a request most of the time is that. Whose quickest
    # one bears its clock out is not accused, though not believed either: who forges has none.
    quickest = statistics.median(first.seconds) / max(side.quickest_s - pipe_s / side.calls, _least(side))
    borne_out = max(quickest, statistics.median(shown))
    # Nobody is accused by three pairs: there all of them have come out short for an honest side.
    while (forged := claimed.low > FORGED * max(*ours, borne_out)) and len(ours) < ACCUSING_PAIRS:
        ours.append(long_pair())
    if forged:
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
    return [
        max(s + (lacking - pipe_s) / side.calls, _least(side))
        for s, lacking in zip(side.seconds, side.lacking, strict=True)
    ]


def _least(side: Side) -> float:
    """Seconds per call: of a request of which the pipe took nearly all, our clock cannot say that its calls took less."""
    return LEAST_SHARE * min(s + taken / side.calls for s, taken in zip(side.seconds, side.lacking, strict=True))


def _is_borne_out_among_others(contest: Contest, first: Side, side: Side) -> bool:
    """Whether somebody else is at work on the device, and long samples stretch the side's times no more than the first one's.

    A GPU gives processes slices of some milliseconds in turns. A sample that fits in one is as long as ever by the clock
    of its side, and by ours it waits for the slices of others, one side at every sample for longer than the other.
    """
    stretched: dict[str, list[float]] = {first.name: [], side.name: []}
    for _ in range(3):
        for one in (first, side):
            long = _blaming(one, lambda one: contest.long_sample(one, LONG_S))
            stretched[one.name].append(long / statistics.median(one.seconds))
    usual, own = (statistics.median(stretched[one.name]) for one in (first, side))
    allowed = 1 + contest.protocol.clock_share
    return usual > allowed and own <= usual * allowed


def _doubt(contest: Contest, first: Side, side: Side) -> None:
    """A worker whose clock lacks more against ours than the baseline's does is not believed."""
    sample = statistics.median(side.seconds) * side.calls
    # The smallest of all samples: on a busy machine the wake-up of a worker costs milliseconds, but not every time.
    lacking, usual = min(side.lacking), min(first.lacking)
    for _ in range(MORE_DOUBTS):
        if lacking - usual <= PIPE_S + contest.protocol.clock_share * sample:
            return
        _blaming(side, contest.sample)
        lacking = min(lacking, side.lacking.pop())
        side.seconds.pop()
    if _is_borne_out_among_others(contest, first, side):
        return
    raise SideFailure(
        side.name,
        Outcome.CHEATED,
        f"its clock lacks {(lacking - usual) * 1e3:.2f} ms of a sample of {sample * 1e3:.2f} ms against ours",
    )
