"""One file over the sizes of an axis."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest

import run as door
from graph.runs import RunError
from graph.sweep import picture, sizes, sweep
from harness.records import Check, Comparison, Interval, Outcome, Timing, Verdict
from kernels import catalog
from tests.harness.report.hostile import PAYLOAD, dangerous

KERNEL = Path(__file__).resolve().parents[1] / "inputs" / "cpu_quantise"


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("tokens=1:16:x2", "tokens", (1, 2, 4, 8, 16)),
        ("tokens=1:15:x2", "tokens", (1, 2, 4, 8)),
        ("tokens=64:256:64", "tokens", (64, 128, 192, 256)),
        ("tokens=33,7,7", "tokens", (7, 33)),
        ("hidden=4096", "hidden", (4096,)),
    ],
)
def test_sizes_are_read(text: str, name: str, values: tuple[int, ...]) -> None:
    assert sizes(text) == (name, values)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tokens", "cannot be read"),
        ("tokens=", "cannot be read"),
        ("tokens=1:2", "cannot be read"),
        ("tokens=a:b:x2", "cannot be read"),
        ("tokens=0:8:x2", "goes nowhere"),
        ("tokens=8:1:x2", "goes nowhere"),
        ("tokens=1:8:x1", "goes nowhere"),
        ("tokens=0,3", "at least 1"),
        ("tokens=1:100000000000:1", "more than 64 sizes"),
    ],
)
def test_sizes_that_are_none_are_one_sentence(text: str, said: str) -> None:
    with pytest.raises(RunError, match=said):
        sizes(text)


def test_one_axis_is_swept_and_the_others_stand() -> None:
    kernel = catalog.load("silu_and_mul")
    made = sweep(kernel, "cpu", ["tokens=1,8", "hidden=64"], ["bfloat16"])
    assert [w.label for w in made.kernel.spec.workloads] == [
        "bfloat16 tokens=1 hidden=64", "bfloat16 tokens=8 hidden=64",
    ]  # fmt: skip
    assert not kernel.spec.workloads[0].label.startswith("bfloat16 tokens=1 ")
    for asked, dtypes, said in (
        (["token=1,2"], [], "has no axis 'token'"),
        (["tokens=1,2", "hidden=3,4"], [], "one axis"),
        (["tokens=1"], [], "one axis"),
        (["tokens=1,2"], ["float16", "float32"], "one dtype"),
    ):
        with pytest.raises(RunError, match=said):
            sweep(kernel, "cpu", asked, dtypes)


def test_the_picture_shows_what_was_timed() -> None:
    made = sweep(catalog.load("silu_and_mul"), "cpu", ["tokens=1:64:x2"], [])
    one = Interval(median=2.0, low=1.9, high=2.1)
    timings = tuple(
        Timing(
            workload=w, cache=cache, baseline_us=10.0 * w.axes["tokens"], time_us=5.0 * w.axes["tokens"], speedup=one,
            comparison=Comparison.FASTER, light_us=1.0, samples=3,
        )
        for w in made.kernel.spec.workloads for cache in ("cold", "hot")
    )  # fmt: skip
    checks = (Check(workload="w", name="n", passed=True),)
    verdict = Verdict(
        candidate="a" * 64, kernel="k", device=PAYLOAD, outcome=Outcome.PASSED, checks=checks, timings=timings
    )
    drawn = picture(made, verdict, PAYLOAD, PAYLOAD)
    ElementTree.fromstring(drawn)
    assert drawn.count("<circle") == 7 * (2 + 2 + 1) and not dangerous(drawn)
    for said in ("time of a call, µs", "bandwidth, GB/s", "speedup over the baseline", "speed of light", "hidden"):
        assert said in drawn
    failed = verdict.failed(Outcome.INCORRECT, "wrong")
    with pytest.raises(RunError, match="nothing was timed, so there is nothing to draw: INCORRECT: wrong"):
        picture(made, failed, "b", "f")


@pytest.mark.skipif(shutil.which("g++") is None, reason="g++ is not installed")
def test_a_file_is_swept_and_drawn(tmp_path: Path, capsys, few_samples: None) -> None:
    axis = catalog.load(str(KERNEL)).spec.axes[0]
    words = ["evaluate", "--kernel", str(KERNEL), "--device", "cpu", str(KERNEL / "baseline.cpp"), "--json"]
    assert door.main([*words, "--axis", f"{axis}=2:4:x2", "--plot", str(tmp_path / "s.svg")]) == 0
    record = json.loads(capsys.readouterr().out)
    assert sorted({t["workload"]["axes"][axis] for t in record["timings"]}) == [2, 4]
    assert "<svg" in (tmp_path / "s.svg").read_text()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--plot", "x.svg"], "--plot draws a sweep: give --axis too"),
        (["--run", "nothing"], "there is no run 'nothing'"),
        (["--run", "nothing", "--kernel", "silu_and_mul"], "--run brings its kernel"),
    ],
)
def test_what_does_not_go_together_is_said(words: list[str], said: str, capsys, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert door.main(["evaluate", *words, *(["x.cpp"] if "--plot" in words else [])]) == 2
    assert said in capsys.readouterr().err
