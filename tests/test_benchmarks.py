"""The scripts that measure the instrument still fit it: each is run once, on the CPU, at a size that takes no time."""

from __future__ import annotations

import json
import sys
from dataclasses import replace

import pytest

from benchmarks import cluster, comparison, draft_correctness, kernelbench_agreement
from harness import backends
from kernels import catalog
from kernels.spec import Workload

pytestmark = [
    pytest.mark.usefixtures("few_samples"),
    pytest.mark.skipif(bool(backends.get("cpu").why_unavailable()), reason=backends.get("cpu").why_unavailable()),
]
SMALL = Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32", devices=("cpu",))


@pytest.fixture
def small(monkeypatch):
    """silu_and_mul, which all three take by default, of one small workload."""
    kernel = catalog.load("silu_and_mul")
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": (SMALL,), "dtypes": ("float32",)}))
    monkeypatch.setattr(catalog, "load", lambda _name: kernel)
    return kernel


def run(module, monkeypatch, *arguments: str) -> None:
    monkeypatch.setattr(sys, "argv", [module.__name__, *arguments])
    module.main()


def test_a_kernel_beside_itself_and_beside_a_slower_one(small, monkeypatch, capsys):
    arguments = ("--kernel", "silu_and_mul", "--trials", "1", "--slowed", "1", "--slower", "900")
    arguments += ("--slowed-baselines", "1", "--faster", "900")
    run(comparison, monkeypatch, "--device", "cpu", *arguments)
    itself, slower = capsys.readouterr().out.split("made slower")
    assert "against itself" in itself and itself.count("silu_and_mul") == 1
    assert slower.count("the candidate, 900 %") == slower.count(" of 1 SLOWER") == 2
    assert slower.count("the baseline, 900 %") == slower.count(" of 1 FASTER") == 2


def test_one_process_beside_two_devices(small, monkeypatch, capsys, tmp_path):
    arguments = ("--engine", "process", "--device", "cpu", "--kernel", "silu_and_mul", "--candidates", "1")
    run(cluster, monkeypatch, "judge", *arguments, "--out", str(tmp_path / "one.json"))
    record = json.loads((tmp_path / "one.json").read_text())
    (item,) = record["items"]
    assert record["width"] == 1 and item["speedup"] and item["said"] in {*cluster.SURE, "UNCLEAR"}
    more = [
        item | {"said": "CHEATED"},
        *({"item": f"another {at}", "said": "SAME", "speedup": 1, "seconds": 1.0} for at in range(3)),
    ]
    two = record | {"engine": "dask:2", "width": 2, "wall_s": 2 * record["wall_s"], "items": more, "overhead_s": [0.01]}
    (tmp_path / "two.json").write_text(json.dumps(two))
    capsys.readouterr()
    run(cluster, monkeypatch, "compare", str(tmp_path / "one.json"), str(tmp_path / "two.json"))
    said = capsys.readouterr().out
    assert "1.000 of linear;" in said and "verdicts agree 0 of 1," in said and f"{item['said']} and CHEATED" in said


def test_campaigns_that_are_cut_off_are_compared_by_the_problems_that_both_ended(monkeypatch, capsys, tmp_path):
    """Two workers that are as fast as one and never idle are linear, however many problems are left at work when no more are begun."""

    def record(width: int, *items: tuple[str, float, float]) -> dict:
        rows = [
            (0.0, name, kind, 0.002, 1.0, "gpu") for name, _, _ in items for kind in ("verify", "compile", "verify")
        ]
        rows += [(0.0, f"ahead {at}", "compile", 0.004, 1.0, "gpu") for at in range(9)]
        found = [
            {
                "item": name,
                "said": "FASTER",
                "speedup": 2.0,
                "seconds": end - begun,
                "nodes": {},
                "reason": "",
                "ended_s": end,
            }
            for name, begun, end in items
        ]
        wall, overhead = max(end for _, _, end in items), [row[3] for row in rows]
        return {"engine": f"dask:{width}", "width": width, "opened_s": 1.0, "wall_s": wall, "overhead_s": overhead,
                "questions": rows, "items": found}  # fmt: skip

    one, two = tmp_path / "one.json", tmp_path / "two.json"
    one.write_text(json.dumps(record(1, ("a", 0, 10), ("b", 10, 30), ("c", 30, 40))))
    two.write_text(json.dumps(record(2, ("a", 0, 10), ("b", 0, 20), ("c", 10, 20), ("d", 20, 40))))
    run(cluster, monkeypatch, "compare", str(one), str(two))
    said = capsys.readouterr().out
    assert (
        "works 1.000 times as fast as the first's, has a problem for 1.000 of the time (the first's 1.000): 1.000 of"
        in said
    )
    assert "10 ms a problem of 3.0 questions and a build ahead, 5 ms for each of its 2.0 verdicts" in said


STAND_IN = """
import torch

class Result:
    def __init__(self, **said):
        self.said = said

    def model_dump(self, include):
        return {name: self.said[name] for name in include}


def eval_kernel_against_ref(original, custom, *, num_correct_trials, num_perf_trials, build_dir, device, **_):
    assert (num_correct_trials, num_perf_trials, str(device)) == (5, 100, "cpu")
    space = {}
    exec(original, space)
    exec(custom, space)
    given = space["get_inputs"]()
    try:
        right = torch.allclose(space["Model"]()(*given), space["ModelNew"]()(*given), atol=1e-4, rtol=1e-4)
    except RuntimeError:
        right = False
    return Result(compiled=True, correctness=right, runtime=1.0 if right else -1.0, ref_runtime=1.0)
"""


@pytest.mark.slow
def test_kernelbench_s_own_evaluation_beside_ours(monkeypatch, capsys, tmp_path):
    """With a stand-in for its eval.py, which is its own and needs a GPU: honest and spoiled are told apart by both."""
    (tmp_path / "src" / "kernelbench").mkdir(parents=True)
    (tmp_path / "src" / "kernelbench" / "eval.py").write_text(STAND_IN)
    level = tmp_path / "KernelBench" / "level1"
    level.mkdir(parents=True)
    for number in (1, 2):
        (level / f"{number}_Softmax.py").write_text(
            "import torch\nfrom torch import nn\n\n\nclass Model(nn.Module):\n    def forward(self, x):\n"
            "        return torch.softmax(x, dim=1)\n\n\ndef get_inputs():\n    return [torch.randn(7, 50)]\n"
        )
    problems = "1:1,1:2"
    run(kernelbench_agreement, monkeypatch, "--kernelbench", str(tmp_path), "--problems", problems, "--device", "cpu")
    said = capsys.readouterr().out
    assert "correctness: 4 of 4 agree" in said and "in the median" in said
    records = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    assert [one["theirs"]["correctness"] for one in records] == [True, False] * 2


def test_a_problem_is_made_small_by_the_numbers_that_its_top_level_names():
    text = "batch_size = 16\ndepth = 32; height = width = 96\nN, M = 2048 * 2, 7\nshape = (99, 99)\nname = 'é'; rows = 999\n"
    small = draft_correctness.shrunk(text, 16)
    assert (
        small
        == "batch_size = 4\ndepth = 16; height = width = 12\nN, M = 16, 7\nshape = (99, 99)\nname = 'é'; rows = 17\n"
    )
    assert draft_correctness.shrunk(text, 1 << 40) == text.replace("batch_size = 16", "batch_size = 4").replace(
        "2048 * 2", "4096"
    )
    assert [largest for largest, _ in draft_correctness.variants("x = 20\n")] == [16, 0]
