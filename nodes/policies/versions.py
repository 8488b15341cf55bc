"""Which two measured forms of a kernel promise more in one file than either alone, and where the host should change over.

Every form was timed on the same workloads. For each pair the choices that a host can make at a launch (by data type, by
one side of a threshold on a size) are gone through; what is promised is the mean over all timings of the form that each
workload would get. Medians carry noise, so every condition must earn half a margin; the harness measures the result.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from harness.bands import LARGEST_THRESHOLD, Measure, between, measures
from kernels.spec import Spec, Workload
from nodes.roles import Version

MOST = 4
"""Proposals at a time: later rounds ask again, knowing more."""


def proposed(
    spec: Spec,
    workloads: Sequence[Workload],
    speedups: Mapping[str, Sequence[float]],
    incumbent: float,
    margin: float,
) -> list[tuple[str, Version, float]]:
    """(base, version, speedup over the baseline to expect), most promising first, all above `incumbent` by the margin.

    `workloads` are those of the timings, one each; `speedups` are each source's over the baseline, in the same order.
    A choice that leaves a workload slower than the baseline by the margin is none: it would not be kept.
    """
    if not workloads:
        return []
    logs = {name: [math.log(value) for value in each] for name, each in speedups.items() if len(each) == len(workloads)}
    best: dict[tuple[str, str], tuple[float, Version]] = {}
    choices = list(_choices(spec, workloads))
    for base, mine in logs.items():
        for other, theirs in logs.items():
            if other == base:
                continue
            for version, cost in choices:
                taken = [version.takes(spec, workload) for workload in workloads]
                joined = [b if take else a for a, b, take in zip(mine, theirs, taken, strict=True)]
                promise = sum(joined) / len(joined) - cost * margin / 2
                if min(joined) > -margin and promise > best.get((base, other), (-math.inf,))[0]:
                    best[base, other] = promise, version.model_copy(update={"candidate": other})
    found = [
        (base, version, math.exp(promise))
        for (base, _), (promise, version) in best.items()
        if promise > math.log(incumbent) + margin
    ]
    return sorted(found, key=lambda one: (-one[2], one[0], one[1].candidate))[:MOST]


def _choices(spec: Spec, workloads: Sequence[Workload]) -> Iterator[tuple[Version, int]]:
    """What a host can go by, with the number of conditions. Nothing that takes all of the workloads or none."""
    dtypes = list(dict.fromkeys(workload.dtype for workload in workloads))
    subsets = [tuple(spec.dtypes), *((dtype,) for dtype in dtypes if len(dtypes) > 1)]
    for subset in subsets:
        narrowed = int(subset != tuple(spec.dtypes))
        if narrowed:
            yield Version(candidate="", dtypes=subset), 1
        mine = [workload for workload in workloads if workload.dtype in subset]
        for measure in measures(spec):
            ranked = sorted({measure.of(spec, workload) for workload in mine})
            limits = [between(low, high) for low, high in itertools.pairwise(ranked)]
            limits = [limit for limit in limits if limit <= LARGEST_THRESHOLD]
            for at in range(len(limits)):
                for side in ("below", "at_least"):
                    yield _version(subset, measure, limits, at, side), 1 + narrowed


def _version(dtypes: tuple[str, ...], measure: Measure, limits: list[int], at: int, side: str) -> Version:
    near = [limits[i] for i in (at - 1, at + 1) if 0 <= i < len(limits)]
    return Version(candidate="", dtypes=dtypes, measure=measure, others=tuple(near), **{side: limits[at]})
