"""Which two measured forms of a kernel promise more in one file than either alone, and where the host should change over.

Every form was timed on the same workloads. For each pair the choices that a host can make at a launch (by data type, by
one side of a threshold on a size) are gone through; what is promised is the mean over all timings of the form that each
workload would get, less half a margin, where that is more than the measurements' noise. The harness measures the result.

What is faster on the whole stays the rule, and the other form the exception, under the narrowest conditions that say the
same of the measured workloads: sizes that nobody measured get what was faster on the whole.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from harness.timing import comparison
from kernels.spec import Spec, Workload
from nodes.rewrites.specialize.version import choices
from nodes.roles import Attempt, Version

DEVIATIONS = 3.0
"""Standard deviations of noise by which the exception must be better: the best of many choices is picked."""
MOST = 4
"""Proposals at a time: later rounds ask again, knowing more."""


class MeasuredPoint(NamedTuple):
    """Logarithm of a form's speedup over the baseline in one timing, and the variance of its last measurement."""

    log: float
    variance: float


def collect_points(root: str, timings: int, attempts: Sequence[Attempt]) -> dict[str, list[MeasuredPoint]]:
    """Every source by the chain of incumbents that it was measured beside.

    Both sides of a gain ran in turns; speedups over the baseline of two attempts did not, and a busy machine moves them.
    """
    found = {root: [MeasuredPoint(0.0, 0.0)] * timings}
    for attempt in attempts:
        if attempt.over in found and len(attempt.gains) == timings:
            beside = zip(found[attempt.over], attempt.gains, strict=True)
            found.setdefault(
                attempt.candidate,
                [MeasuredPoint(point.log + math.log(gain.median), comparison.variance(gain)) for point, gain in beside],
            )
    return found


def propose(
    spec: Spec,
    workloads: Sequence[Workload],
    forms: Mapping[str, Sequence[MeasuredPoint]],
    incumbent: float,
    margin: float,
) -> list[tuple[str, Version, float]]:
    """(base, version, speedup over the baseline to expect), most promising first, all above `incumbent` by the margin.

    `workloads` are those of the timings, one each; `forms` are the measured sources, in the same order. A choice that leaves
    a workload slower than the baseline by the margin is none: it would not be kept.
    """
    if not workloads:
        return []
    means = {name: sum(point.log for point in each) / len(each) for name, each in forms.items()}
    fit = {name: min(point.log for point in each) > -margin for name, each in forms.items()}
    best: dict[tuple[str, str], tuple[float, int, Version]] = {}
    ways = [
        (version, narrowness, [version.takes(spec, workload) for workload in workloads])
        for version, narrowness in choices(spec, workloads)
    ]
    for base, mine in forms.items():
        for other, theirs in forms.items():
            if other == base or (means[other], other) > (means[base], base):
                continue
            for version, narrowness, taken in ways:
                joined = [b.log if take else a.log for a, b, take in zip(mine, theirs, taken, strict=True)]
                mean = sum(joined) / len(joined)
                promise = round(mean - margin / 2, 9)
                # A form that is slower than the baseline somewhere is no rival: it would not be kept.
                rivals = [(means[name], its) for name, its in ((base, False), (other, True)) if fit[name]]
                rival, its = max(rivals, default=(0.0, None))
                differ = [(a, b) for a, b, take in zip(mine, theirs, taken, strict=True) if take is not its]
                noise = math.sqrt(sum(a.variance + b.variance for a, b in differ)) / len(joined)
                clear = mean - rival > DEVIATIONS * noise and min(joined) > -margin
                if clear and (promise, narrowness) > best.get((base, other), (-math.inf, 0))[:2]:
                    best[base, other] = promise, narrowness, version.model_copy(update={"candidate": other})
    found = [
        (base, version, math.exp(promise))
        for (base, _), (promise, _, version) in best.items()
        if promise > math.log(incumbent) + margin
    ]
    return sorted(found, key=lambda one: (-one[2], one[0], one[1].candidate))[:MOST]
