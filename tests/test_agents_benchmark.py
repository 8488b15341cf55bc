"""benchmarks/agents.py: one agent and four at the same budget, against a model server that gives recorded answers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.backends import cpu
from tests.nodes.policies.server import Says, model_server

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "graph" / "recorded"


def answers(name: str, count: int) -> list[Says]:
    lines = (RECORDED / f"{name}.jsonl").read_text().splitlines()[:count]
    return [Says(text=json.loads(line)["reply"]["text"]) for line in lines]


@pytest.mark.slow
@pytest.mark.skipif(bool(cpu.why_unavailable()), reason="no g++")
def test_both_are_run_and_compared_and_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    """A round each: the single agent's two answers; the four agents' four, and two repairs."""
    command = [
        sys.executable, "-m", "benchmarks.agents", "--kernels", "silu_and_mul", "--rounds", "1", "--runs-dir", str(tmp_path), "--",
        "--policy", "chat", "--model", "a-model", "--device", "cpu", "--dtype", "bfloat16", "--tune-seconds", "0",
        "--coder", "oneshot",
    ]  # fmt: skip
    with model_server() as server:
        server.script = [*answers("silu_and_mul.single", 2), *answers("silu_and_mul", 6)]
        keys = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
        for asked in (8, 8):  # the second call finds both runs finished
            done = subprocess.run(command, cwd=ROOT, env=os.environ | keys, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stderr[-2000:]
            assert len(server.requests) == asked
    rows = [line for line in done.stdout.splitlines() if "silu_and_mul" in line]
    assert ["single" in rows[0], "four" in rows[1]] == [True, True]
    assert all("1 of 1" in row for row in rows) and "240" in rows[0] and "720" in rows[1]  # tokens: 120 a request
    assert "geometric mean" in done.stdout


@pytest.mark.slow
@pytest.mark.skipif(bool(cpu.why_unavailable()), reason="no g++")
def test_recorded_answers_are_played_back_with_what_they_cost(tmp_path: Path) -> None:
    command = [
        sys.executable, "-m", "benchmarks.agents", "--kernels", "silu_and_mul", "--rounds", "1", "--runs-dir", str(tmp_path),
        "--recorded", str(RECORDED), "--", "--device", "cpu", "--dtype", "bfloat16", "--tune-seconds", "0",
    ]  # fmt: skip
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [json.loads(line)["usage"] for line in (RECORDED / "silu_and_mul.jsonl").read_text().splitlines()]
    assert f"{sum(line['tokens_in'] + line['tokens_out'] for line in lines):,}" in done.stdout
