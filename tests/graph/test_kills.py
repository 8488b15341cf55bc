"""SIGKILL before and after the work of each node in turn: the resumed run ends as the unbroken one."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from graph.workflow import NODES

REPOSITORY = Path(__file__).resolve().parents[2]

VISITED = {node.__name__ for node in NODES} - {"drafter"}
"""By a run about a kernel: only a problem is drafted."""


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> dict[str, Any]:
    """Made by the first test process that asks; the others wait for it."""
    if worker_id == "master":
        return make()
    shared = tmp_path_factory.getbasetemp().parent / "kills"
    shared.mkdir(exist_ok=True)
    with (shared / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        kept = shared / "results.json"
        if not kept.exists():
            kept.write_text(json.dumps(make()))
        return json.loads(kept.read_text())


def make() -> dict[str, Any]:
    # In memory where there is such a place: SIGKILL does not care, and three thousand fsyncs do.
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as folder:
        command = [sys.executable, "-m", "tests.graph.kills", folder]
        done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_unbroken_run_passes_every_node_and_ends_well(results: dict[str, Any]) -> None:
    unbroken = results["unbroken"]
    assert set(unbroken["started"]) == VISITED
    assert unbroken["speedup"] == pytest.approx(2.0)
    assert [(a["round"], a["outcome"]) for a in unbroken["attempts"]] == [
        (1, "PASSED"), (1, "PASSED"), (2, "INCORRECT"), (2, "NO_CANDIDATE"),
        (3, "PASSED"), (3, "PASSED"), (4, "PASSED"), (4, "PASSED"),
    ]  # fmt: skip
    assert [a["repairs"] for a in unbroken["attempts"][:4]] == [2, 0, 2, 0]
    assert unbroken["lessons"] == sorted(
        [a["round"], a["plan"]["title"], a["outcome"], a["accepted"]] for a in unbroken["attempts"]
    )


def test_every_node_was_killed_at_every_point(results: dict[str, Any]) -> None:
    killed = {name.split()[0] for name in results} - {"unbroken"}
    assert killed == VISITED
    assert len(results) == 1 + 2 * len(VISITED)


def test_a_killed_and_resumed_run_ends_as_the_unbroken_one(results: dict[str, Any]) -> None:
    unbroken = {key: value for key, value in results["unbroken"].items() if key != "started"}
    for name, result in results.items():
        ended = {key: value for key, value in result.items() if key != "started"}
        assert ended == unbroken, name


def test_a_resumed_run_begins_with_the_node_that_was_not_finished(results: dict[str, Any]) -> None:
    order = results["unbroken"]["started"]
    for name, result in results.items():
        if name == "unbroken":
            continue
        node, visit, _ = name.split()
        index = [i for i, started in enumerate(order) if started == node][int(visit) - 1]
        assert result["started"] == order[index:], name
