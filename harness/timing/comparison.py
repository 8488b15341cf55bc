"""FASTER, SLOWER, SAME or UNCLEAR, from paired ratios. Starts from UNCLEAR; an interval, not a point."""

from __future__ import annotations

import functools
import itertools
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
        below += math.exp(math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1) - n * math.log(2))
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


LEAST_SERIES = 3
"""Series of samples, each begun in fresh processes, before a comparison says FASTER, SLOWER or SAME that is short, or FASTER or SLOWER on a CPU
that others use as well."""
MOST_SERIES = 99
_STUDENT = (63.657, 9.925, 5.841, 4.604, 4.032, 3.707, 3.499, 3.355, 3.250, 3.169)
"""Quantiles of Student's distribution at 99.5 %, by degrees of freedom from 1 on: both sides of an interval of 99 %."""


def _student(freedom: int) -> float:
    if freedom <= len(_STUDENT):
        return _STUDENT[freedom - 1]
    z = statistics.NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)


def _spread(series: Sequence[Sequence[float]]) -> tuple[float, float]:
    """(mean, standard deviation) of the logarithms of the series' medians; two series at least."""
    logs = [math.log(statistics.median(one)) for one in series]
    return statistics.fmean(logs), statistics.stdev(logs)


def split(ratios: Sequence[float], lengths: Sequence[int]) -> list[list[float]]:
    """Ratios by the series they are of, from the samples that each series has."""
    ends = itertools.accumulate(lengths)
    return [list(ratios[end - count : end]) for end, count in zip(ends, lengths, strict=True)]


def series_interval(series: Sequence[Sequence[float]]) -> Interval:
    """Median ratio of all samples, its interval as wide as the series differ among each other.

    Samples of one series are alike: where others use the machine a process loses its core, or keeps it, through all of it, and five
    samples said 3.2x [2.6, 5.8] of two sources of which fifty-five said 1.0x. The interval holds that of the samples as if they
    were independent and Student's of the series' medians. Of fewer than LEAST_SERIES nobody knows how far they are off: theirs is that of
    the samples, and compare_series says UNCLEAR.
    """
    pooled = median_interval([ratio for one in series for ratio in one])
    if len(series) < LEAST_SERIES:
        return pooled
    middle, deviation = _spread(series)
    half = min(_student(len(series) - 1) * deviation / math.sqrt(len(series)), 50.0)
    low, high = math.exp(middle - half), math.exp(middle + half)
    return Interval(median=pooled.median, low=min(pooled.low, low), high=max(pooled.high, high))


def compare_series(series: Sequence[Sequence[float]], margin: float) -> Comparison:
    """UNCLEAR below LEAST_SERIES, however narrow the interval is."""
    return Comparison.UNCLEAR if len(series) < LEAST_SERIES else compare(series_interval(series), margin)


def series_needed(series: Sequence[Sequence[float]], margin: float) -> int:
    """How many series more would decide if they differ as those so far do: 0 where it is decided, at most MOST_SERIES."""
    if compare_series(series, margin) is not Comparison.UNCLEAR:
        return 0
    known = len(series)
    if known < LEAST_SERIES:
        return LEAST_SERIES - known
    found, (middle, deviation) = series_interval(series), _spread(series)
    room = max(abs(abs(middle) - math.log(1 + margin)), 1e-9)
    width = math.log(found.high / found.low) / 2
    for wanted in range(known + 1, known + MOST_SERIES):
        between = _student(wanted - 1) * deviation / math.sqrt(wanted)
        if between < room and width * math.sqrt(known / wanted) < room:
            return wanted - known
    return MOST_SERIES


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
