"""FASTER, SLOWER, SAME or UNCLEAR, from paired ratios. Starts from UNCLEAR; an interval, not a point."""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Sequence

import numpy as np

from harness.records import Comparison, Interval

CONFIDENCE = 0.99
MARGIN = {"cuda": 0.01, "cpu": 0.03}
"""Share of the ratio, by device, that systematic differences between two workers of the same binary may amount to;
measured by A/A runs (benchmarks/comparison.py), and never called FASTER."""


@functools.cache
def _ranks(n: int, confidence: float) -> tuple[int, int]:
    """Order statistics (0-based, inclusive) whose interval covers the median with at least `confidence`.

    Distribution-free: the number of samples below the median is binomial(n, 1/2). With too few samples the whole
    range is the best there is.
    """
    below, tail = 0.0, (1 - confidence) / 2
    rank = 0
    for k in range(n // 2):
        below += math.comb(n, k) * 0.5**n
        if below > tail:
            break
        rank = k
    return rank, n - 1 - rank


def median_interval(samples: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Median and its confidence interval, without assuming a distribution. Raises ValueError for no samples."""
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("no samples")
    low, high = _ranks(len(ordered), confidence)
    return Interval(median=float(np.median(ordered)), low=ordered[low], high=ordered[high])


def variance(interval: Interval) -> float:
    """Variance of the logarithm of a ratio whose interval has the confidence of this file."""
    deviations = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return (math.log(interval.high / interval.low) / (2 * deviations)) ** 2


def compare(interval: Interval, margin: float) -> Comparison:
    """What an interval of (baseline time / candidate time) says. SAME is a finding of its own: all of it within the margin."""
    if interval.low > 1 + margin:
        return Comparison.FASTER
    if interval.high < 1 - margin:
        return Comparison.SLOWER
    if interval.low >= 1 - margin and interval.high <= 1 + margin:
        return Comparison.SAME
    return Comparison.UNCLEAR


def weigh(ratios: Sequence[Sequence[float]], times: Sequence[float], confidence: float = CONFIDENCE) -> Interval:
    """Time of all calls before / after: `times` after, of each case's calls together, in any unit; `ratios` as for geometric_mean."""
    if not ratios:
        raise ValueError("no cases")
    rng, after = np.random.default_rng(0), np.asarray(times, dtype=float)
    cases = [np.asarray(samples, dtype=float) for samples in ratios]
    draws = np.array([np.median(rng.choice(samples, size=(1000, len(samples))), axis=1) for samples in cases])
    before = (draws * after[:, None]).sum(axis=0) / after.sum()
    low, high = np.quantile(before, [(1 - confidence) / 2, (1 + confidence) / 2])
    middle = float(sum(np.median(samples) * time for samples, time in zip(cases, after, strict=True)) / after.sum())
    return Interval(median=middle, low=min(low, middle), high=max(high, middle))


def geometric_mean(ratios: Sequence[Sequence[float]], confidence: float = CONFIDENCE) -> Interval:
    """Geometric mean over cases of the median ratio of each, with a bootstrap interval over each case's samples."""
    if not ratios:
        raise ValueError("no cases")
    rng = np.random.default_rng(0)  # resampling only: the same samples give the same interval
    logs = [np.log(np.asarray(samples)) for samples in ratios]
    draws = np.mean([np.median(rng.choice(samples, size=(1000, len(samples))), axis=1) for samples in logs], axis=0)
    tail = (1 - confidence) / 2
    low, high = np.quantile(draws, [tail, 1 - tail])
    middle = float(np.mean([np.median(samples) for samples in logs]))
    return Interval(median=math.exp(middle), low=math.exp(min(low, middle)), high=math.exp(max(high, middle)))
