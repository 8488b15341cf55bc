"""Runs one scenario again and again in forked processes that are killed by SIGKILL at a given point, and resumed.

    kills.py FOLDER    prints {"unbroken": {...}, "<node> <visit> <when>": {...}, ...}

Forking after the imports makes a case cost a tenth of a second. `when` is one of
    begins    in the node's first line
    ends      when its work is done and nothing of it is stored
What is on the disk when a node's update has just been stored is what is there when the next one begins.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import traceback
from collections import Counter
from pathlib import Path
from typing import Any

from graph import memory, outputs, workflow
from graph.result import versions
from graph.session import Door
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


class Death:
    """Kills this process at its point; counts visits by itself, so a resumed process is given none."""

    def __init__(self, node: str, visit: int, when: str) -> None:
        self.node, self.visit, self.when = node, visit, when
        self.visits: Counter[str] = Counter()

    def wrap(self, node: workflow.Node) -> workflow.Node:
        def wrapped(state, runtime):
            self.visits[node.__name__] += 1
            mine = node.__name__ == self.node and self.visits[self.node] == self.visit
            if mine and self.when == "begins":
                die()
            update = node(state, runtime)
            if mine and self.when == "ends":
                die()
            return update

        wrapped.__name__ = node.__name__
        return wrapped


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def attempt(folder: Path, death: Death | None, *, resume: bool) -> int:
    """One process's life; its wait status."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1]
    try:
        front = Silent()
        if death is not None:
            workflow.NODES = tuple(death.wrap(node) for node in workflow.NODES)
        door = Door(folder, paper_context(Script(SCRIPT)))
        if resume:
            ending = door.resume("killed", front, nobody)
        else:
            ending = door.start(record(scenario()), BASELINE, front, nobody)
        facts = {
            "attempts": [row.model_dump(mode="json", exclude={"seconds"}) for row in ending.result.attempts],
            "best": ending.result.best,
            "stop": ending.result.stop_reason,
            "speedup": ending.result.speedup.median,
            "tokens": ending.result.spent.tokens_in,
            "calls": ending.result.spent.calls,
            "evaluations": sorted((folder / "killed" / "evaluations.log").read_text().splitlines()),
            "lessons": learned(folder),
            "started": [node for event, node in front.events if event == "started"],
        }
        (folder / "facts.json").write_text(json.dumps(facts))
    except BaseException:  # noqa: BLE001  a forked child must not go on in pytest's place
        traceback.print_exc()
        os._exit(1)
    os._exit(0)


def learned(folder: Path) -> list[list[Any]]:
    with memory.store(folder) as store:
        lessons = [entry.lesson for entry in memory.entries(store)]
    return sorted([one.round, one.title, str(one.outcome), one.kept] for one in lessons if one is not None)


def case(folder: Path, death: Death | None) -> dict[str, Any]:
    folder.mkdir(parents=True)
    status = attempt(folder, death, resume=False)
    if death is not None:
        if not os.WIFSIGNALED(status) or os.WTERMSIG(status) != signal.SIGKILL:
            return {"error": f"was not killed: status {status}"}
        status = attempt(folder, None, resume=True)
    if status:
        return {"error": f"ended with status {status}"}
    facts = json.loads((folder / "facts.json").read_text())
    shutil.rmtree(folder)
    return facts


def main(folder: Path) -> None:
    # Once, before forking: compilers' versions. Never: the report, which takes longer than the run and has own tests.
    versions(scenario())
    outputs.write_report = lambda *_: None
    unbroken = case(folder / "unbroken", None)
    results = {"unbroken": unbroken}
    visits = Counter(unbroken["started"])
    for node, count in visits.items():
        for visit, when in ((1, "begins"), (count, "ends")):
            name = f"{node} {visit} {when}"
            results[name] = case(folder / name.replace(" ", "-"), Death(node, visit, when))
    json.dump(results, sys.stdout)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
