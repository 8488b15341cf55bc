"""Two runs, or two files of results, side by side."""

from __future__ import annotations

import json
import math
from pathlib import Path
from xml.etree import ElementTree

import pytest

import run as door
from graph.compare import compare, of_result
from graph.runs import RunError
from harness.records import Interval
from tests.harness.report.example import RESULT
from tests.harness.report.hostile import PAYLOAD, dangerous


def other(factor: float, **changes):
    rows = [
        row.model_copy(
            update={
                "best_us": row.best_us / factor,
                "speedup": Interval(**{k: v * factor for k, v in row.speedup.model_dump().items()}),
            }
        )
        for row in RESULT.workloads
    ]
    return RESULT.model_copy(update={"run_id": "other", "workloads": tuple(rows), **changes})


def test_over_a_common_baseline_the_ratio_is_that_of_the_speedups() -> None:
    both = compare(of_result(RESULT), of_result(other(1.5)))
    assert len(both.pairs) == len(RESULT.workloads) and both.common_baseline
    assert both.overall.median == pytest.approx(1.5)
    for pair in both.pairs:
        width = math.log(pair.ratio.high / pair.ratio.low)
        assert pair.ratio.median == pytest.approx(1.5)
        # Wider than each one's own interval, narrower than their sum.
        own = [math.log(row.speedup.high / row.speedup.low) for row in (pair.first, pair.second)]
        assert max(own) < width < sum(own)


def test_without_one_it_is_of_times_and_says_so() -> None:
    both = compare(of_result(RESULT), of_result(other(1.5, source="7" * 64, device_name="another GPU")))
    assert both.overall.median == pytest.approx(1.5) and both.overall.low == both.overall.high
    said = " ".join(both.notes)
    assert "not over a common baseline" in said and "NVIDIA H200 and on another GPU" in said


def test_only_what_both_have_is_compared() -> None:
    fewer = other(1.5, workloads=other(1.5).workloads[:3])
    both = compare(of_result(RESULT), of_result(fewer))
    assert len(both.pairs) == 3 and f"{len(RESULT.workloads) - 3} timings have no counterpart" in " ".join(both.notes)
    with pytest.raises(RunError, match="no workload in common"):
        compare(of_result(RESULT), of_result(other(1.5, workloads=())))
    with pytest.raises(RunError, match="there is nothing to compare"):
        compare(of_result(RESULT), of_result(other(1.5, kernel="rms_norm")))


def test_two_files_are_one_table_and_one_picture(tmp_path: Path, capsys) -> None:
    (tmp_path / "a.json").write_text(RESULT.model_dump_json())
    hostile = other(0.5, run_id=PAYLOAD)
    (tmp_path / "b.json").write_text(hostile.model_dump_json())
    words = ["compare", str(tmp_path / "a.json"), str(tmp_path / "b.json")]
    assert door.main([*words, "--output", str(tmp_path / "both.svg")]) == 0
    said = capsys.readouterr().out
    assert "0.50×" in said and "same baseline" in said and str(tmp_path / "both.svg") in said and "\x1b" not in said
    drawn = (tmp_path / "both.svg").read_text()
    ElementTree.fromstring(drawn)
    assert drawn.count("<circle") == len(RESULT.workloads) and not dangerous(drawn)
    assert door.main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["median"] == pytest.approx(0.5)


@pytest.mark.parametrize("text", ["", "[]", '{"timings": 3}', '{"run_id": "x"}', "\udcff"])
def test_a_file_that_is_neither_is_one_sentence(tmp_path: Path, capsys, text: str) -> None:
    (tmp_path / "a.json").write_bytes(text.encode(errors="surrogateescape"))
    assert door.main(["compare", str(tmp_path / "a.json"), str(tmp_path / "a.json")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "a.json" in said.err


def test_what_evaluate_printed_is_read_too(tmp_path: Path, capsys) -> None:
    row = RESULT.workloads[0]
    timing = {
        "workload": {"axes": row.axes, "dtype": row.dtype}, "cache": row.cache, "baseline_us": 10.0, "time_us": 4.0,
        "speedup": {"median": 2.5, "low": 2.4, "high": 2.6}, "comparison": "FASTER", "samples": 9,
    }  # fmt: skip
    verdict = {"file": "mine.cu", "kernel": RESULT.kernel, "device": "NVIDIA H200", "timings": [timing]}
    (tmp_path / "v.json").write_text(json.dumps(verdict))
    (tmp_path / "r.json").write_text(RESULT.model_dump_json())
    assert door.main(["compare", str(tmp_path / "r.json"), str(tmp_path / "v.json")]) == 0
    assert "mine.cu over silu_and_mul-2026" in capsys.readouterr().out
