"""`run.py fork`: a new run from a checkpoint of another."""

from __future__ import annotations

import argparse

from graph.commands.opened import asker, close, door, front, told
from graph.commands.options import Parser, budget, common, limits, lock_clocks, on_end


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="run.py fork", allow_abbrev=False, description="A new run from a checkpoint of another.")
    made.add_argument("run", metavar="RUN")
    made.add_argument(
        "--checkpoint", required=True, metavar="ID", help="as `history RUN` lists it; any unique part of it"
    )
    made.add_argument("--run-id", metavar="NAME", help="name the new run")
    budget(made)
    common(made)
    on_end(made)
    lock_clocks(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph.choices import command
    from graph.runs import Run, new_id, now, valid_id
    from harness.clocks import locked

    origin = Run.find(asked.runs_dir, asked.run).record
    checkpoint = door(asked).checkpoint_id(asked.run, asked.checkpoint)
    name = valid_id(asked.run_id) if asked.run_id else new_id(origin.kernel)
    why = f"forked from {asked.run} at checkpoint {checkpoint}"
    changes = limits(asked) | {
        "run_id": name,
        "why": (*origin.settings.why, why),
        "command": command([checkpoint if word == asked.checkpoint else word for word in asked.words]),
    }
    new = origin.model_copy(
        update={
            "run_id": name,
            "created": now(),
            "settings": origin.settings.changed(**changes),
            "forked_from": f"{asked.run}@{checkpoint}",
        }
    )
    made = Run(asked.runs_dir, name)
    settings = origin.settings
    with locked(asked.lock_clocks, settings.device, settings.engine.name):  # before there is a run, where it may not be
        made.reserve()
        with told(asked, made), front(asked, (why,)) as shown:
            ending = door(asked).fork(asked.run, checkpoint, new, shown, asker())
    return close(ending, asked)
