"""Which pairs of measured forms are proposed, and which are not."""

from __future__ import annotations

import math

import pytest

from harness.judge.bands import Measure
from harness.records import Interval
from kernels.spec import Size, Spec, Tensor, Workload
from nodes.policies.versions import MeasuredPoint, collect_points, propose
from nodes.roles import Attempt, Plan

DTYPES = ("float16", "float32")
WORKLOADS = tuple(
    Workload(axes={"rows": rows, "n": n}, dtype=dtype)
    for dtype in DTYPES
    for rows, n in ((16, 1024), (64, 1024), (1024, 1024))
)
SPEC = Spec(
    name="some",
    summary="an operation with two sizes",
    axes=("rows", "n"),
    dtypes=DTYPES,
    arguments=(Tensor(name="out", role="output", shape=("rows", "n")), Size(name="rows"), Size(name="n")),
    workloads=WORKLOADS,
)
MARGIN = 0.01
ONES = (1.0,) * 6


def points(speedups: dict[str, tuple[float, ...]], noise: float = 0.001) -> dict[str, list[MeasuredPoint]]:
    return {name: [MeasuredPoint(math.log(value), noise**2) for value in each] for name, each in speedups.items()}


def best(speedups: dict[str, tuple[float, ...]], incumbent: float):
    found = propose(SPEC, WORKLOADS, points({"root": ONES} | speedups), incumbent, MARGIN)
    assert [one[2] for one in found] == sorted((one[2] for one in found), reverse=True)
    return found[0] if found else None


def mean(*values: float) -> float:
    return math.prod(values) ** (1 / len(values))


def taken(version) -> list[bool]:
    return [version.takes(SPEC, workload) for workload in WORKLOADS]


def test_a_form_that_loses_on_the_largest_leaves_it_to_the_other() -> None:
    base, version, speedup = best({"a": (2, 2, 0.8, 2, 2, 0.8)}, 1.0)
    assert (base, version.candidate) == ("a", "root")
    assert taken(version) == [False, False, True] * 2
    assert speedup == pytest.approx(mean(2, 2, 1, 2, 2, 1), rel=MARGIN)


def test_a_form_of_one_data_type() -> None:
    base, version, speedup = best({"a": (2, 2, 2, 1, 1, 1), "b": (1, 1, 1, 2, 2, 2)}, mean(2, 1))
    assert {base, version.candidate} == {"a", "b"} and version.measure is None and len(version.dtypes) == 1
    assert speedup == pytest.approx(2, rel=MARGIN)


def test_a_size_within_one_data_type() -> None:
    base, version, _ = best({"a": (2, 2, 0.9, 2, 2, 2)}, 1.0)
    assert (base, version.candidate) == ("a", "root")
    assert taken(version) == [False, False, True, False, False, False]
    assert version.dtypes == ("float16",) and version.measure is not None


def test_of_conditions_that_say_the_same_of_what_was_measured_the_narrowest_is_taken() -> None:
    """The largest workload is the only one of its data type: by size, large ones of other types would lose, too."""
    few = (*WORKLOADS[:2], WORKLOADS[5])
    ((base, version, _),) = propose(SPEC, few, points({"root": (1, 1, 1), "a": (2, 2, 0.97)}), 1.0, MARGIN)
    assert (base, version.candidate) == ("a", "root")
    assert version.dtypes == ("float32",) and version.measure is None


@pytest.mark.parametrize(
    "speedups",
    [
        {},
        {"a": (1.5,) * 6},  # nothing that another one does better
        {"a": (1.5, 1.5, 1.5, 1.5, 1.5, 1.505), "b": (1.5, 1.5, 1.5, 1.5, 1.5, 1.495)},  # noise
        {"a": (1.5, 0.9, 1.6, 1.5, 0.9, 1.5), "b": (0.9, 0.9, 1.5, 0.9, 0.9, 1.5)},  # slower than the baseline in between
    ],
)  # fmt: skip
def test_what_promises_nothing_is_not_proposed(speedups: dict[str, tuple[float, ...]]) -> None:
    incumbent = 1.5 if speedups else 1.0
    assert best(speedups, incumbent) is None


def test_without_timings_there_is_nothing_to_propose() -> None:
    assert propose(SPEC, (), {"root": [], "a": []}, 1.0, MARGIN) == []


def test_thresholds_lie_between_measured_sizes_and_may_move_to_the_next_gap() -> None:
    _, version, _ = best({"a": (2, 2, 0.8, 2, 2, 0.8)}, 1.0)
    limit = version.below or version.at_least
    rows = Measure(sizes=("rows",))
    assert version.measure == rows or version.measure.tensor == "out"
    sizes = sorted(version.measure.of(SPEC, workload) for workload in WORKLOADS)
    assert sizes[0] < limit < sizes[-1] and limit not in version.others and version.others


def test_what_noise_could_have_made_is_not_proposed() -> None:
    speedups = {"root": ONES, "a": (2, 2, 1.8, 2, 2, 1.8), "b": (1.8, 1.8, 2, 1.8, 1.8, 2)}
    assert propose(SPEC, WORKLOADS, points(speedups, 0.01), 1.9, MARGIN)
    assert not propose(SPEC, WORKLOADS, points(speedups, 0.1), 1.9, MARGIN)


def test_a_source_is_as_fast_as_the_incumbent_that_ran_beside_it_says() -> None:
    """Its speedup over the baseline, measured in another minute, does not count."""

    def attempt(name: str, over: str, *gains: float, speedup: float) -> Attempt:
        intervals = tuple(Interval(median=gain, low=gain * 0.99, high=gain * 1.01) for gain in gains)
        plan = Plan(id=name, title=name, steps=("x",), base="root")
        return Attempt(
            round=1, plan=plan, candidate=name, outcome="PASSED", speedup=speedup, over=over, gains=intervals
        )

    attempts = [
        attempt("a", "root", 2.0, 3.0, speedup=2.4),
        attempt("b", "a", 0.5, 1.0, speedup=9.0),
        attempt("c", "nobody", 1.0, 1.0, speedup=1.0),
        attempt("d", "a", 1.0, speedup=1.0),  # of another suite
    ]
    found = collect_points("root", 2, attempts)
    assert {name: [math.exp(point.log) for point in each] for name, each in found.items()} == {
        "root": [1, 1], "a": pytest.approx([2, 3]), "b": pytest.approx([1, 3]),
    }  # fmt: skip
    assert found["root"][0].variance == 0 < found["b"][0].variance
