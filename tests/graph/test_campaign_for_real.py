"""`run.py campaign` from end to end without a GPU: drafted by the rules, built by g++, judged by both protocols, reported."""

from __future__ import annotations

import json
from pathlib import Path

from tests import forked

COMMAND = """
import run, sys, tests.machine
from graph.campaign import Campaign

tests.machine.hurry()
one = Campaign._one


def prepared_first(self, task, front):  # as on a machine with cores for it
    task.plan.prepare(task.path)
    return one(self, task, front)


Campaign._one = prepared_first
sys.exit(run.main(sys.argv[1:]))
"""
SOFTMAX = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        return torch.softmax(x, dim=1)


def get_inputs():
    return [torch.randn(6, 50)]
"""


def test_a_campaign_over_a_suite_of_two_files_one_of_which_is_none(tmp_path: Path):
    level = tmp_path / "mine" / "level1"
    level.mkdir(parents=True)
    (level / "3_Softmax.py").write_text(SOFTMAX)
    (level / "4_Nothing.py").write_text("raise SystemExit('nothing here')\n")
    words = ["campaign", "--suite", str(tmp_path / "mine"), "--rounds", "0"]
    words += ["--protocol", "kernelbench", "--device", "cpu", "--runs-dir", str(tmp_path / "runs"), "--json"]
    done = forked.run(COMMAND, *words, timeout=270)
    assert done.returncode == 0, done.stderr[-2000:]
    found = {line["id"]: line for line in json.loads(done.stdout)["page"]["lines"]}
    assert found["l1-004-Nothing"]["state"] == "unfit" and found["l1-004-Nothing"]["reason"]
    softmax = found["l1-003-Softmax"]
    assert (softmax["state"], softmax["outcome"], softmax["disagreement"]) == ("done", "PASSED", ""), softmax
    assert softmax["solved"]["correct"] and softmax["solved"]["speedup"]["eager"]["median"] > 0
    folder = tmp_path / "runs" / "mine-cpu"
    result = json.loads((folder / softmax["link"]).with_name("result.json").read_text())
    if result["comparison"] == "FASTER":  # cold and hot, of which one gains least
        assert softmax["worst"].startswith(f"worst {result['worst']['speedup']['median']:.2f}×")
        assert softmax["worst"] in (folder / "report.html").read_text()
    assert (folder / softmax["link"]).is_file()
    theirs = json.loads((folder / "kernelbench" / "level1" / "eval_results.json").read_text())
    assert [one["correctness"] for one in theirs["3"]] == [True]
    sample = (folder / "kernelbench" / "level1" / "level_1_problem_3_sample_0_kernel.py").read_text()
    assert "class ModelNew" in sample and "load_native = " in sample
    ahead = {path.stat().st_ino for path in (folder / "ahead" / "l1-003-Softmax" / "builds").rglob("*.so")}
    run = {path.stat().st_ino for path in (folder / "runs" / "l1-003-Softmax" / "store" / "builds").rglob("*.so")}
    assert len(ahead) == 1 and ahead <= run, "what was built beforehand is not built again"
