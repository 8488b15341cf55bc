"""Rows that packs do not fit: workloads a few elements longer than the timed ones, and for which of them a source's own form is faster.

A candidate is judged at the sizes that its spec names, which mostly divide by everything. `longer` makes neighbours of them that do
not, `slower` reads from what was measured at both for which a host should take the source's own launch (see multiversion.py).
The fallback gate asks for this (nodes/fallback.py); it is no step of a plan.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from harness.records import Comparison, Timing
from harness.timing import comparison
from kernels.spec import DTYPE_BYTES, Spec, Workload
from nodes.rewrites.specialize.version import Uneven, Version, choices

PACK_BYTES = 16
DEVIATIONS = 3.0
"""By how many standard deviations of noise the source must be faster: the best of many conditions is picked."""


def row_axis(spec: Spec, workload: Workload) -> str | None:
    """The axis that makes the rows of the largest tensor longer, None where their length is fixed."""
    largest = max(spec.tensors, key=lambda tensor: spec.tensor_bytes(tensor, workload))
    length = spec.shape(largest, workload.axes)[-1]
    longer = ({**workload.axes, axis: size + 1} for axis, size in workload.axes.items())
    return next(
        (axis for axis, axes in zip(workload.axes, longer, strict=True) if spec.shape(largest, axes)[-1] != length),
        None,
    )


def remainders(spec: Spec) -> tuple[int, ...]:
    """1, 2, 4, ...: what can be left of a row behind its last whole pack, as the largest power of two that divides it."""
    least = min((DTYPE_BYTES[dtype] for dtype in spec.dtypes), default=1)
    return tuple(2**power for power in range(int(math.log2(PACK_BYTES // least))))


def longer(workload: Workload, axis: str, remainder: int) -> Workload:
    """The next longer row that divides by `remainder` and by nothing twice as large."""
    size = workload.axes[axis]
    more = (remainder - size) % (2 * remainder) or 2 * remainder
    return workload.model_copy(update={"axes": {**workload.axes, axis: size + more}, "timed": True})


def every_uneven(spec: Spec, axis: str, remainder: int) -> Version:
    """All rows that do not divide by more than the remainder does."""
    return Version(candidate="", dtypes=spec.dtypes, uneven=Uneven(size=axis, by=2 * remainder))


def slower(spec: Spec, axis: str, timings: Sequence[Timing], margin: float) -> Version | None:
    """For which uneven sizes the source, whose time over the candidate's each timing's `speedup` is, is clearly faster.

    The condition that gains most over all timings, where every threshold and every remainder beyond the first must bring half a
    margin of one. None where no gain is clear.
    """
    found: tuple[float, Version] | None = None
    for version, parts in _conditions(spec, axis, timings):
        loss = clear_loss([timing for timing in timings if version.takes(spec, timing.workload)], margin)
        value = loss - parts * margin / 2
        if loss and (found is None or value > found[0]):
            found = value, version
    return found[1] if found else None


def clear_loss(timings: Sequence[Timing], margin: float) -> float:
    """What a candidate loses to the source, as the sum of the logarithms over its timings; 0 where that is not clear of the noise,
    not a margin each, or no timing is SLOWER by itself."""
    loss = -sum(math.log(timing.speedup.median) for timing in timings)
    noise = math.sqrt(sum(comparison.variance(timing.speedup) for timing in timings))
    clear = loss > max(DEVIATIONS * noise, margin * len(timings))
    return loss if clear and any(timing.comparison is Comparison.SLOWER for timing in timings) else 0.0


def _conditions(spec: Spec, axis: str, timings: Sequence[Timing]) -> Iterator[tuple[Version, int]]:
    """What a host can go by, and of how many parts it is."""
    workloads = [timing.workload for timing in timings]
    measured = [one for one in remainders(spec) if any(w.axes[axis] % (2 * one) == one for w in workloads)]
    for widened, remainder in enumerate(measured):
        every = every_uneven(spec, axis, remainder)
        yield every, widened
        for version, narrowness in choices(spec, [one for one in workloads if every.takes(spec, one)]):
            yield version.model_copy(update={"uneven": every.uneven, "others": ()}), widened + narrowness
