"""One scenario unbroken, and once more by processes each of which is killed by SIGKILL at its point; the next one resumes.

`main(FOLDER)` prints {"unbroken": {...}, "killed": {...}, "points": [[index, when], ...], "lives": [[node, ...], ...]}: a point is
that of a node in the unbroken run's order, a life the nodes that one process began with. `when` is one of
    begins    in the node's first line
    ends      when its work is done and nothing of it is stored
What is on the disk when a node's update has just been stored is what is there when the next one begins. Every node is killed at
its first visit's beginning and at its last one's end, so whatever a process has in mind and not on the disk is lost on the way.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from graph import memory, outputs, workflow
from graph.result import versions
from graph.session import RunService
from nodes.state import Settings
from tests.graph.doubles import BASELINE, Script, Silent, nobody, paper_context, record, settings

# Round 1: a plan that has to be repaired twice, side by side with one that is tuned. Round 2: a wrong one, and one
# with no source. Round 3: what is UNCLEAR stays so. Round 4: what is UNCLEAR turns out to be the winner.
SCRIPT: dict[int, list[Any]] = {
    1: [["compile error 1", "incorrect\nspeed 9", "speed 1.2"], "speed 1.3\ntune 64 128 256"],
    2: [["incorrect\nspeed 2", "incorrect\nspeed 3", "incorrect\nspeed 4"], ""],
    3: ["speed 1.5\nunclear always", "speed 0.5"],
    4: ["speed 2.0\nunclear", "speed 1.9"],
}


def scenario() -> Settings:
    return settings("killed", rounds=4, width=2, patience=4, memory="on")


class Life:
    """Writes down which nodes a process begins; kills it when `node` is visited for the `visit`-th time, if one is named."""

    current: Life

    def __init__(self, log: Path, node: str = "", visit: int = 0, when: str = "") -> None:
        self.log, self.node, self.visit, self.when = log, node, visit, when
        self.visits: Counter[str] = Counter()

    def visit_node(self, name: str) -> bool:
        """Write it down; whether the process is to be killed in this visit."""
        with self.log.open("a") as log:
            log.write(f"{name}\n")
        self.visits[name] += 1
        return name == self.node and self.visits[name] == self.visit


def wrap(node: workflow.Node) -> workflow.Node:
    def wrapped(state, runtime):
        life = Life.current
        mine = life.visit_node(node.__name__)
        if mine and life.when == "begins":
            die()
        update = node(state, runtime)
        if mine and life.when == "ends":
            die()
        return update

    wrapped.__name__ = node.__name__
    return wrapped


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def attempt(folder: Path, life: Life, *, resume: bool) -> int:
    """One process's life; its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        front = Silent()
        Life.current = life
        service = RunService(folder, paper_context(Script(SCRIPT)))
        if resume:
            ending = service.resume("killed", front, nobody)
        else:
            ending = service.start(record(scenario()), BASELINE, front, nobody)
        found = {
            "attempts": [
                row.model_dump(mode="json", exclude={"seconds", "tool_seconds"}) for row in ending.result.attempts
            ],
            "best": ending.result.best,
            "stop": ending.result.stop_reason,
            "speedup": ending.result.speedup.median,
            "tokens": ending.result.spent.tokens_in,
            "calls": ending.result.spent.calls,
            # Short comparisons are not kept: whoever is killed after one makes it again.
            "evaluations": sorted(line for line in evaluations(folder) if not line.startswith("contend")),
            "lessons": learned(folder),
        }
        (folder / "facts.json").write_text(json.dumps(found))
    except BaseException:  # noqa: BLE001  a forked child must not go on in pytest's place
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def evaluations(folder: Path) -> list[str]:
    return (folder / "killed" / "evaluations.log").read_text().splitlines()


def learned(folder: Path) -> list[list[Any]]:
    with memory.store(folder) as store:
        lessons = [entry.lesson for entry in memory.entries(store)]
    return sorted([one.round, one.title, str(one.outcome), one.kept] for one in lessons if one is not None)


def facts(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "facts.json").read_text())


def lived(folder: Path) -> list[str]:
    """The nodes that the last process began."""
    log = folder / "life.log"
    nodes = log.read_text().split()
    log.unlink()
    return nodes


def main(folder: Path) -> None:
    # Once, before forking: compilers' versions, the graph. Never: the report, which takes longer than the run and has own tests.
    versions(scenario())
    workflow.NODES = tuple(wrap(node) for node in workflow.NODES)
    workflow.build()
    outputs.write_report = lambda *_: None
    unbroken, killed = folder / "unbroken", folder / "killed"
    for place in (unbroken, killed):
        place.mkdir()
    status = attempt(unbroken, Life(unbroken / "life.log"), resume=False)
    assert status == 0, status
    order, lives = lived(unbroken), []
    last = {node: index for index, node in enumerate(order)}
    points = sorted([(order.index(node), "begins") for node in last] + [(last[node], "ends") for node in last])
    at = 0
    for index, when in points:
        visit = order[at : index + 1].count(order[index])
        status = attempt(killed, Life(killed / "life.log", order[index], visit, when), resume=bool(lives))
        assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (order[index], when, status)
        lives.append(lived(killed))
        at = index
    status = attempt(killed, Life(killed / "life.log"), resume=True)
    assert status == 0, status
    lives.append(lived(killed))
    found = {"unbroken": facts(unbroken), "killed": facts(killed), "order": order, "points": points, "lives": lives}
    json.dump(found, sys.stdout)
