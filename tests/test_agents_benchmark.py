"""benchmarks/agents.py: one agent and four at the same budget, against a model server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.agents import AGENTS
from harness.backends import cpu
from tests.nodes.policies.server import Says, model_server
from tests.nodes.policies.test_chat import FINDING, PLANS

ROOT = Path(__file__).resolve().parent.parent
RECORDED = ROOT / "tests" / "graph" / "recorded"
TESTS: dict[str, Any] = {"workloads": [], "values": [], "reasons": ""}


def answer(body: dict[str, Any]) -> Says:
    """As a model would: no tests, a finding, a plan; with tools a source that is written, checked and submitted in one answer."""
    if body.get("tools"):
        source = (ROOT / "kernels" / "silu_and_mul" / "baseline.cpp").read_text() + "\n// the same\n"
        return Says(calls=(("compile", {"source": source, "then": ["check"]}), ("submit", {"notes": "the same"})))
    asked = body["messages"][-1]["content"]
    if "You are the planner" in asked:
        return Says(text=json.dumps(PLANS))
    return Says(text=json.dumps(FINDING if "You are the profiler" in asked else TESTS))


@pytest.mark.slow
@pytest.mark.skipif(bool(cpu.why_unavailable()), reason="no g++")
def test_both_are_run_and_compared_and_what_was_run_is_not_run_again(tmp_path: Path) -> None:
    """A round each: the single agent's tests and its turn; of the four an answer each."""
    command = [
        sys.executable, "-m", "benchmarks.agents", "--kernels", "silu_and_mul", "--rounds", "1", "--runs-dir", str(tmp_path),
        "--tool-seconds", "77", "--", "--policy", "chat", "--model", "a-model", "--device", "cpu", "--dtype", "bfloat16",
        "--tune-seconds", "0",
    ]  # fmt: skip
    with model_server() as server:
        server.answer = answer
        keys = {"OPENAI_API_KEY": "a-key", "OPENAI_BASE_URL": server.base_url}
        for _ in range(2):  # the second call finds both runs finished
            done = subprocess.run(command, cwd=ROOT, env=os.environ | keys, capture_output=True, text=True, timeout=240)
            assert done.returncode == 0, done.stderr[-2000:]
            assert len(server.requests) == 6
    rows = [line for line in done.stdout.splitlines() if "silu_and_mul" in line]
    assert ["single" in rows[0], "four" in rows[1]] == [True, True]
    assert all("1 of 1" in row for row in rows) and "240" in rows[0] and "480" in rows[1]  # tokens: 120 a request
    assert "geometric mean" in done.stdout
    prompts = [request["body"]["messages"][-1]["content"] for request in server.requests if "tools" in request["body"]]
    assert len(prompts) == 2 and all("77 seconds of tools" in prompt for prompt in prompts), "the same for both"
    for agents in AGENTS:
        (attempt,) = json.loads((tmp_path / f"agents-silu_and_mul-{agents}" / "result.json").read_text())["attempts"]
        assert attempt["tool_seconds"] > 0 and attempt["turns"] == 1 and attempt["tools"] == {"compile": 1, "submit": 1}


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
