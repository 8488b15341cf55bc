import itertools
import math
import re

import pytest

from harness.records import Interval
from harness.report import charts, svg
from harness.report.result import Result
from tests.harness.report.example import RESULT


@pytest.mark.parametrize("values", [[], [1.0], [1.31, 0.97], [0.1, 40.0], [math.inf, 0.0, 1.2], [1e-9, 1e9]])
def test_the_speedup_scale_always_shows_one(values):
    scale = svg.ratio_scale(values)
    assert 0 < scale(1.0) < 1
    assert all(0 <= scale(value) <= 1 for value in values if math.isfinite(value))
    assert 2 <= len(scale.ticks) <= 12
    assert list(scale.ticks) == sorted(scale.ticks)


def test_times_are_placed_by_logarithm():
    rows = RESULT.rows(held_out=False)
    scale = charts.time_scale(rows)
    assert scale(2.0) - scale(1.0) == pytest.approx(scale(200.0) - scale(100.0))
    chart = charts.times_chart(rows, scale)
    for _, _, lines in chart.groups:
        assert [line.row.cache for line in lines] == ["cold", "hot"]
        for line in lines:
            assert 0 <= line.left <= line.left + line.width <= 100.01
            assert (line.best < line.baseline) == (line.row.best_us < line.row.baseline_us)


@pytest.mark.parametrize("high", [3, 40, 700, 9_000, 80_000, 2e6, 3e8])
def test_labels_of_times_do_not_touch_on_a_phone(high):
    rows = [
        RESULT.workloads[0].model_copy(update={"baseline_us": us, "best_us": us, "light": None}) for us in (1, high)
    ]
    kept = [tick for tick in charts.times_chart(rows, charts.time_scale(rows)).ticks if not tick[2]]
    assert len(kept) >= 2
    for (left, a, _), (right, b, _) in itertools.pairwise(kept):
        room = (right - left) / 100 * 200  # px of the rail on a screen of 400 px
        assert room >= 7 * (len(a) + len(b)) / 2 + 4, (a, b)


def test_a_wild_interval_does_not_break_the_chart():
    row = RESULT.attempts[0].model_copy(update={"speedup": Interval(median=1.0, low=0.0, high=math.inf)})
    svg = charts.rounds_chart(Result.model_validate(RESULT.model_dump() | {"attempts": [row]}), 600, 300)
    for drawn in re.findall(r' (?:d|[cxyr]+[12]?)="([^"]*)"', svg):
        assert "nan" not in drawn and "inf" not in drawn
