import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from harness.records import Comparison, Interval, Timing
from harness.report.result import AttemptRow, PlanRow, Result, WorkloadRow, policy_text, schema
from kernels.spec import Workload
from tests.harness.report.example import RESULT, interval

DOCS = Path(__file__).parents[3] / "docs"


def test_the_written_schema_is_current():
    written = json.loads((DOCS / "result.schema.json").read_text())
    assert written == json.loads(schema()), "python -m harness.report.result > docs/result.schema.json"


def test_every_field_is_described_in_the_documentation():
    text = (DOCS / "result.md").read_text()
    assert not [name for name in Result.model_fields if f"`{name}`" not in text]


def test_the_module_prints_the_schema():
    done = subprocess.run(
        [sys.executable, "-m", "harness.report.result"], cwd=DOCS.parent, capture_output=True, text=True, check=False
    )
    assert done.stdout == schema(), done.stderr


def test_the_json_has_the_promised_keys_and_comes_back_the_same():
    record = json.loads(RESULT.model_dump_json())
    promised = "run_id kernel device policy baseline status stop_reason speedup attempts workloads schema_version"
    assert set(promised.split()) <= set(record)
    assert {"median", "low", "high"} == set(record["speedup"])
    assert {"round", "plan", "candidate", "outcome", "comparison"} <= set(record["attempts"][0])
    row = {"axes", "dtype", "held_out", "baseline_us", "best_us", "speedup", "comparison", "light"}
    assert all(row <= set(workload) for workload in record["workloads"])
    assert Result.model_validate_json(RESULT.model_dump_json()) == RESULT


@pytest.mark.parametrize("more", [{"speedup": interval(1.2)}, {"accepted": True}])
def test_no_speedup_without_passed(more):
    with pytest.raises(ValidationError, match="only PASSED"):
        AttemptRow(round=1, plan=PlanRow(id="a", title="a"), outcome="INCORRECT", **more)


def test_a_time_of_zero_is_refused():
    row = RESULT.workloads[0].model_dump()
    with pytest.raises(ValidationError):
        WorkloadRow.model_validate(row | {"best_us": 0.0})


def test_another_version_is_refused():
    with pytest.raises(ValidationError, match="schema_version"):
        Result.model_validate(RESULT.model_dump() | {"schema_version": 2})


def test_a_row_of_a_timing():
    timing = Timing(
        workload=Workload(axes={"tokens": 4, "hidden": 64}, dtype="float16", held_out=True),
        cache="cold",
        baseline_us=4.0,
        time_us=2.0,
        speedup=Interval(median=2.0, low=1.9, high=2.1),
        comparison=Comparison.FASTER,
        light_us=1.0,
        samples=7,
    )
    row = WorkloadRow.of(timing)
    assert (row.held_out, row.baseline_us, row.best_us, row.samples) == (True, 4.0, 2.0, 7)
    assert row.light is not None and (row.light.us, row.light.fraction) == (1.0, 0.5)


@pytest.mark.parametrize(
    ("policies", "text"),
    [
        ({"tester": "rules", "planner": "rules"}, "rules"),
        ({"tester": "rules", "profiler": "rules", "planner": "chat", "coder": "rules"}, "planner=chat, others rules"),
        ({}, ""),
    ],
)
def test_policy_text(policies, text):
    assert policy_text(policies) == text


@pytest.mark.parametrize(
    ("change", "improved"),
    [({}, True), ({"best": RESULT.source}, False), ({"comparison": "SAME"}, False), ({"comparison": "UNCLEAR"}, False)],
)
def test_improved_means_another_file_that_is_clearly_faster(change, improved):
    assert Result.model_validate(RESULT.model_dump() | change).improved is improved


def test_light_fraction_is_a_geometric_mean_over_visible_workloads():
    rows = []
    for share, held_out in ((0.25, False), (1.0, False), (0.01, True)):
        rows.append(RESULT.workloads[0].model_dump() | {"held_out": held_out, "light": {"us": 1.0, "fraction": share}})
    assert Result.model_validate(RESULT.model_dump() | {"workloads": rows}).light_fraction == pytest.approx(0.5)
    assert Result.model_validate(RESULT.model_dump() | {"workloads": []}).light_fraction is None


def test_numbers_that_seem_to_contradict_each_other_are_explained():
    calm = Result.model_validate(
        RESULT.model_dump()
        | {
            "attempts": [row for row in RESULT.attempts if row.accepted],
            "workloads": [
                row.model_copy(update={"best_us": row.baseline_us / row.speedup.median}) for row in RESULT.workloads
            ],
        }
    )
    assert calm.footnotes == ()
    row = calm.workloads[0].model_copy(update={"baseline_us": 277.0, "best_us": 392.0})
    (said,) = calm.model_copy(update={"workloads": (row,)}).footnotes
    assert "median over pairs timed in turn" in said
    high = Interval(median=10.2, low=9.0, high=11.0)
    left = calm.attempts[0].model_copy(update={"accepted": False, "speedup": high})
    (said,) = calm.model_copy(update={"attempts": (left,)}).footnotes
    assert "one that was not kept may read higher" in said
