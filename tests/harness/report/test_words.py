import pytest

from harness.records import Draws
from harness.report.words import duration, equality, micros, percent, the_baseline, times, worst
from tests.harness.report.example import RESULT


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.994, "0.99×"), (1.0, "1.00×"), (9.99, "9.99×"), (9.996, "10.0×"), (15.62, "15.6×")],
)
def test_times(value, text):
    assert times(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.518, "0.52"), (9.99, "9.99"), (9.996, "10.0"), (52.94, "52.9"), (99.96, "100"), (15450.2, "15,450")],
)
def test_micros_have_three_digits(value, text):
    assert micros(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.6, "1 min 00 s"), (125, "2 min 05 s"), (4330, "1 h 12 min")],
)
def test_duration(value, text):
    assert duration(value) == text


def test_percent():
    assert (percent(0.974), percent(None)) == ("97 %", "–")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("production", "the production baseline"),
        ("baseline", "the baseline"),
        ("/tmp/my.cu", "the baseline /tmp/my.cu"),
    ],
)
def test_the_baseline(name, text):
    assert the_baseline(name) == text


def test_the_workload_that_gains_least_is_named_beside_a_mean():
    rows = sorted(RESULT.rows(held_out=False), key=lambda row: row.speedup.median)
    assert worst(rows[1:] + rows[:1]).startswith(f"worst {times(rows[0].speedup.median)} at {rows[0].label} ")
    assert worst(rows[:1]) == "", "a mean of one hides nothing"


def test_equality_is_said_by_output():
    draws = Draws(count=200, bitwise=3, error=0.5, baseline_error=0.4, differing={"codes": 0.002, "scale": 0.0})
    assert equality(draws) == (
        "codes: bitwise but for 0.2 % of its elements, which are within tolerance; scale: bitwise"
    )
    assert equality(draws.model_copy(update={"bitwise": 200})) == "bitwise"
