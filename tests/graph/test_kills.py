"""SIGKILL before and after the work of each node in turn: the run that is resumed each time ends as the unbroken one."""

from __future__ import annotations

import fcntl
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest

from graph.workflow import NODES
from tests import forked

KILLS = "import pathlib, sys; from tests.graph import kills; kills.main(pathlib.Path(sys.argv[1]))"

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
        done = forked.run(KILLS, folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_unbroken_run_passes_every_node_and_ends_well(results: dict[str, Any]) -> None:
    unbroken = results["unbroken"]
    assert set(results["order"]) == VISITED
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
    killed = {(results["order"][index], when) for index, when in results["points"]}
    assert killed == {(node, when) for node in VISITED for when in ("begins", "ends")}
    assert len(results["lives"]) == 1 + 2 * len(VISITED)


def test_a_killed_and_resumed_run_ends_as_the_unbroken_one(results: dict[str, Any]) -> None:
    assert results["killed"] == results["unbroken"]


def test_a_resumed_run_begins_with_the_node_that_was_not_finished(results: dict[str, Any]) -> None:
    order = results["order"]
    begins = [0, *(index for index, _ in results["points"])]
    ends = [*(index + 1 for index, _ in results["points"]), len(order)]
    assert results["lives"] == [order[begin:end] for begin, end in zip(begins, ends, strict=True)]
