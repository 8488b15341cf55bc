"""Which two measured forms of a kernel promise more in one file than either alone, and where the host should change over.

Every form was timed on the same workloads. For each pair the choices that a host can make at a launch (by data type, by
one side of a threshold on a size) are gone through; what is promised is the mean over all timings of the form that each
workload would get, less half a margin, since medians carry noise. The harness measures the result.

What is faster on the whole stays the rule, and the other form the exception, under the narrowest conditions that say the
same of the measured workloads: sizes that nobody measured get what was faster on the whole.
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
    means = {name: sum(each) / len(each) for name, each in logs.items()}
    best: dict[tuple[str, str], tuple[float, int, Version]] = {}
    choices = [
        (version, narrowness, [version.takes(spec, workload) for workload in workloads])
        for version, narrowness in _choices(spec, workloads)
    ]
    for base, mine in logs.items():
        for other, theirs in logs.items():
            if other == base or (means[other], other) > (means[base], base):
                continue
            for version, narrowness, taken in choices:
                joined = [b if take else a for a, b, take in zip(mine, theirs, taken, strict=True)]
                promise = round(sum(joined) / len(joined) - margin / 2, 9)
                if min(joined) > -margin and (promise, narrowness) > best.get((base, other), (-math.inf, 0))[:2]:
                    best[base, other] = promise, narrowness, version.model_copy(update={"candidate": other})
    found = [
        (base, version, math.exp(promise))
        for (base, _), (promise, _, version) in best.items()
        if promise > math.log(incumbent) + margin
    ]
    return sorted(found, key=lambda one: (-one[2], one[0], one[1].candidate))[:MOST]


def _choices(spec: Spec, workloads: Sequence[Workload]) -> Iterator[tuple[Version, int]]:
    """What a host can go by, and how narrow that is: a size, a data type, both. Nothing that takes all or none."""
    dtypes = list(dict.fromkeys(workload.dtype for workload in workloads))
    subsets = [tuple(spec.dtypes), *((dtype,) for dtype in dtypes if len(dtypes) > 1)]
    for subset in subsets:
        narrowed = 2 * (subset != tuple(spec.dtypes))
        if narrowed:
            yield Version(candidate="", dtypes=subset), narrowed
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
