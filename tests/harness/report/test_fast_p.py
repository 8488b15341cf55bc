"""fast_p, pass@k and the rest by hand-computed figures."""

from __future__ import annotations

import math

import pytest

from harness.records import Interval
from harness.report.fast_p import (
    Solved,
    correct_rate,
    fast_p,
    geometric_mean,
    mean_pass_at_k,
    pass_at_k,
    table,
    tables,
    worst,
)


def solved(speedup: float | None, low: float | None = None, **more) -> Solved:
    found = {} if speedup is None else {"eager": Interval(median=speedup, low=low or speedup, high=speedup)}
    facts = {"level": 1, "number": 1, "name": "one", "compiled": True, "correct": True, "speedup": found}
    return Solved(**(facts | more))


FOUR = [solved(2.0, 1.9), solved(1.0), solved(0.5), solved(None, correct=False)]


def test_faster_means_strictly_faster_and_a_failure_counts_in_n():
    assert fast_p(FOUR, 0, "eager") == 0.75
    assert fast_p(FOUR, 0.5, "eager") == 0.5
    assert fast_p(FOUR, 1.0, "eager") == 0.25  # 1.0 is not more than 1.0
    assert fast_p(FOUR, 2.0, "eager") == 0.0


def test_the_lower_bound_is_stricter():
    assert fast_p([solved(1.2, 0.9)], 1.0, "eager") == 1.0
    assert fast_p([solved(1.2, 0.9)], 1.0, "eager", "low") == 0.0


def test_a_right_candidate_without_a_time_counts_as_right_only():
    assert fast_p(FOUR, 0, "compile") == 0.75
    assert fast_p(FOUR, 0.5, "compile") == 0.0


def test_a_wrong_candidate_never_counts_as_fast():
    wrong = solved(9.0, correct=False)
    assert fast_p([wrong], 0, "eager") == fast_p([wrong], 1, "eager") == correct_rate([wrong]) == 0.0
    assert geometric_mean([wrong], "eager") is None


def test_no_problem_is_no_success():
    assert fast_p([], 0, "eager") == 0.0 and mean_pass_at_k([], 1) is None


def test_geometric_mean_is_over_what_is_right():
    assert geometric_mean(FOUR, "eager") == pytest.approx((2.0 * 1.0 * 0.5) ** (1 / 3))


def test_the_problem_that_gains_least_stands_beside_the_mean():
    slow = solved(0.3, level=1, number=7, name="seven")
    assert worst([*FOUR, slow], "eager") == table("", [*FOUR, slow], "eager").worst == "0.30× at 7_seven"
    assert worst([solved(2.0)], "eager") == worst([], "eager") == worst(FOUR, "compile") == ""


@pytest.mark.parametrize(("n", "c", "k"), [(10, 3, 1), (10, 3, 5), (5, 0, 5), (5, 5, 1), (4, 2, 3)])
def test_pass_at_k_is_the_share_of_subsets_that_hold_a_right_one(n: int, c: int, k: int):
    from itertools import combinations

    chosen = list(combinations(range(n), k))
    expected = sum(any(one < c for one in some) for some in chosen) / len(chosen)
    assert pass_at_k(n, c, k) == pytest.approx(expected)


@pytest.mark.parametrize(("n", "c", "k"), [(3, 1, 4), (3, 4, 1), (3, 1, 0)])
def test_pass_at_k_of_too_few_samples_is_refused(n: int, c: int, k: int):
    with pytest.raises(ValueError, match="not defined"):
        pass_at_k(n, c, k)


def test_a_problem_without_a_single_candidate_counts_against_pass_at_k():
    two = [solved(1.0, samples=2, right=1), solved(None, correct=False, samples=0)]
    assert mean_pass_at_k(two, 1) == pytest.approx(0.25)


def test_tables_by_level_with_and_without_the_degenerate():
    problems = [solved(2.0), solved(3.0, level=2, degenerate=("zeros",)), solved(0.5, level=2)]
    found = {one.title: one for one in tables(problems, ["eager"])}
    assert list(found) == ["level 1", "level 2", "all levels", "without 1 degenerate"]
    assert found["all levels"].fast["1"] == pytest.approx(2 / 3)
    assert found["without 1 degenerate"].fast["1"] == 0.5
    assert list(table("t", problems, "eager").fast) == ["0", "0.5", "0.8", "1", "1.5", "2", "5"]
    assert math.isclose(found["level 1"].geometric_mean or 0, 2.0)
