"""Runs and campaigns whose candidates are judged by a cluster of their own, and what a kill leaves of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.test_run import BASELINE, REFERENCE, SPEC

pytest.importorskip("distributed")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).resolve().parents[2]
RUN = [
    "--device", "cpu", "--engine", "dask:2", "--rounds", "1", "--width", "2",
    "--tune-seconds", "1", "--policy", "rules", "--run-id", "r", "--no-live", "--memory", "off",
]  # fmt: skip
PROBLEM = """
import torch
class Model(torch.nn.Module):
    def forward(self, x):
        return torch.{call}
def get_inputs():
    return [torch.rand(64, 512)]
def get_init_inputs():
    return []
"""


@pytest.fixture(autouse=True)
def two_cores() -> None:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")


def started(folder: Path, *words: str) -> subprocess.Popen:
    environment = os.environ | {"ASTROLABE_CLUSTER_CONTEST_S": "0", "TMPDIR": str(folder)}
    command = [sys.executable, str(REPOSITORY / "run.py"), *words, "--runs-dir", str(folder / "runs")]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_killed_and_resumed_a_run_ends_as_any_other(tmp_path: Path):
    kernel = tmp_path / "twice"
    kernel.mkdir()
    for name, text in (("spec.py", SPEC), ("reference.py", REFERENCE), ("baseline.cpp", BASELINE)):
        (kernel / name).write_text(text)
    first = started(tmp_path, "--kernel", str(kernel), *RUN)
    for line in first.stdout:
        if "timing" in line and "cold" in line:
            first.send_signal(signal.SIGKILL)
            break
    first.wait(60)
    first.stdout.close()
    late = time.monotonic() + 60
    while list(tmp_path.glob("astrolabe-cluster-*")):
        assert time.monotonic() < late, "the cluster outlived its parent"
        time.sleep(0.2)
    again = started(tmp_path, "resume", "r", "--no-live")
    said, _ = again.communicate(timeout=600)
    assert again.returncode in (0, 3), said[-3000:]
    result = json.loads((tmp_path / "runs" / "r" / "result.json").read_text())
    assert result["status"] == "finished" and result["stop_reason"] == "rounds"
    assert result["attempts"] and {row["outcome"] for row in result["attempts"]} == {"PASSED"}
    assert "cores" in result["measured"]["devices"]


def test_a_campaign_is_spread_and_what_was_interrupted_goes_on(tmp_path: Path):
    level = tmp_path / "suite" / "level1"
    level.mkdir(parents=True)
    for number, call in enumerate(("relu(x)", "tanh(x)", "abs(x)"), 1):
        (level / f"{number}_Problem.py").write_text(PROBLEM.format(call=call))
    words = ["campaign", "--suite", str(tmp_path / "suite"), "--name", "c", "--device", "cpu", "--engine", "dask:2"]
    words += ["--rounds", "0", "--policy", "rules", "--no-live"]
    first = started(tmp_path, *words)
    for line in first.stdout:
        if "PASSED" in line:
            first.send_signal(signal.SIGINT)
            break
    first.communicate(timeout=120)
    assert first.returncode == 130
    again = started(tmp_path, *words)
    said, _ = again.communicate(timeout=600)
    assert again.returncode == 0, said[-3000:]
    summary = json.loads((tmp_path / "runs" / "c" / "summary.json").read_text())
    assert [line["state"] for line in summary["page"]["lines"]] == ["done"] * 3
    assert {line["outcome"] for line in summary["page"]["lines"]} == {"PASSED"}
