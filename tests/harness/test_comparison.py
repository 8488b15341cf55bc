"""What intervals say, and that they cover what they claim to."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.records import Comparison, Interval
from harness.timing import comparison
from harness.timing.comparison import compare, geometric_mean, median_interval


@pytest.mark.parametrize(
    ("low", "high", "says"),
    [
        (1.02, 1.05, Comparison.FASTER),
        (1.005, 1.05, Comparison.UNCLEAR),
        (0.95, 0.98, Comparison.SLOWER),
        (0.95, 0.995, Comparison.UNCLEAR),
        (0.99, 1.01, Comparison.SAME),
        (0.985, 1.005, Comparison.UNCLEAR),
        (0.97, 1.01, Comparison.UNCLEAR),
        (0.5, 2.0, Comparison.UNCLEAR),
        (1 + 0.01, 1.05, Comparison.UNCLEAR),  # the margin itself is not beyond it
        (0.95, 1 - 0.01, Comparison.UNCLEAR),
        (1 - 0.01, 1 + 0.01, Comparison.SAME),
    ],
)
def test_compare(low, high, says):
    assert compare(Interval(median=(low + high) / 2, low=low, high=high), 0.01) is says


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=60))
def test_the_median_lies_in_its_interval(samples):
    interval = median_interval(samples)
    assert interval.low <= interval.median <= interval.high


def test_no_samples_is_an_error():
    with pytest.raises(ValueError, match="^no samples$"):
        median_interval([])
    with pytest.raises(ValueError, match="^no cases$"):
        geometric_mean([])


@pytest.mark.parametrize("n", [8, 15, 32])
def test_the_interval_covers_the_true_median(n):
    """99 % of intervals should hold 1.0 for skewed noise, too; 970 of 1000 leaves room for chance."""
    rng = np.random.default_rng(n)
    true = 1.0
    held = 0
    for _ in range(1000):
        samples = true * np.exp(rng.exponential(0.05, n) - 0.05 * np.log(2))
        interval = median_interval(samples.tolist())
        held += interval.low <= true <= interval.high
    assert held >= 970


def test_geometric_mean_of_cases():
    interval = geometric_mean([[2.0] * 8, [0.5] * 8, [8.0] * 8])
    assert interval.median == pytest.approx(2.0)
    assert interval.low == pytest.approx(2.0) and interval.high == pytest.approx(2.0)


def test_the_interval_of_a_geometric_mean_is_that_of_its_resamples():
    """As wide as theory has it for a median of many normal samples, and the same again for the same samples."""
    rng = np.random.default_rng(3)
    n, spread = 400, 0.01
    cases = [np.exp(rng.normal(0.0, spread, n)).tolist() for _ in range(4)]
    found = geometric_mean(cases)
    assert geometric_mean(cases) == found
    half = 2.576 * spread * np.sqrt(np.pi / 2 / n) / 2  # four cases: half as much as of one
    assert np.log(found.high / found.low) / 2 == pytest.approx(half, rel=0.2)
    narrow = geometric_mean(cases, confidence=0.5)
    assert np.log(narrow.high / narrow.low) / 2 == pytest.approx(0.6745 / 2.576 * half, rel=0.2)


def test_geometric_mean_widens_with_noise():
    rng = np.random.default_rng(0)
    noisy = geometric_mean([rng.normal(1.0, 0.2, 12).clip(0.2).tolist()])
    assert noisy.low < noisy.median < noisy.high


def test_weights_make_the_headline_the_time_of_all_calls() -> None:
    """Nine calls of 100 us that become 50, one of 1000 us that becomes 2000: 1900 before, 2450 after."""
    ratios, after = [[2.0] * 30, [0.5] * 30], [9 * 50.0, 1 * 2000.0]
    found = comparison.weigh(ratios, after)
    assert found.median == pytest.approx(1900 / 2450) and found.low == pytest.approx(found.high)
    assert comparison.geometric_mean(ratios).median == pytest.approx(1.0)


def test_a_weighted_interval_is_as_wide_as_what_weighs_most() -> None:
    noisy = [1.0 + 0.4 * (at % 2) for at in range(40)]
    wide, narrow = (
        comparison.weigh([noisy, [1.2] * 40], [99.0, 1.0]),
        comparison.weigh([noisy, [1.2] * 40], [1.0, 99.0]),
    )
    assert wide.high - wide.low > 10 * (narrow.high - narrow.low)


@pytest.mark.parametrize(
    ("freedom", "quantile"), [(1, 63.657), (10, 3.169), (11, 3.106), (20, 2.845), (40, 2.704), (100, 2.626)]
)
def test_few_series_have_students_quantiles(freedom: int, quantile: float):
    assert comparison._student(freedom) == pytest.approx(quantile, abs=0.011)


def test_the_variance_of_an_interval_is_that_of_the_logarithm_it_was_made_of():
    deviation, quantile = 0.1, 2.5758  # of the normal distribution, both sides of 99 %
    low, high = np.exp([-quantile * deviation, quantile * deviation])
    assert comparison.variance(Interval(median=1.0, low=low, high=high)) == pytest.approx(deviation**2, rel=1e-3)
