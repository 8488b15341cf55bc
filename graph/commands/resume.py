"""`run.py resume`: go on with a run."""

from __future__ import annotations

import argparse

from graph.commands.opened import asker, close, door, front, told
from graph.commands.options import ROLES, Parser, budget, common, limits, lock_clocks, on_end, on_engine


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="run.py resume", allow_abbrev=False, description="Go on with a run from its last checkpoint.")
    made.add_argument("run", metavar="RUN")
    made.add_argument("--answer", metavar="yes|no|@FILE", help="the answer that a paused run waits for; @FILE: an edit")
    changes = made.add_argument_group("for the rest of the run")
    budget(changes)
    changes.add_argument("--policy", choices=("rules", "chat", "replay"), help="who answers for all roles from here on")
    changes.add_argument("--model", metavar="NAME", help="language model for all roles from here on")
    on_engine(changes, given=None)
    common(made)
    on_end(made)
    lock_clocks(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph.asking import from_option
    from graph.choices import engine_asked
    from graph.runs import Run
    from harness.clocks import locked

    begun = Run.find(asked.runs_dir, asked.run)
    answer = from_option(asked.answer) if asked.answer is not None else None
    changes = limits(asked)
    if asked.engine is not None:
        changes["engine"] = engine_asked(asked)
    if asked.policy:
        changes["policy"] = dict.fromkeys(ROLES, asked.policy)
    if asked.model:
        changes["models"] = dict.fromkeys(ROLES, asked.model)
    change = (lambda settings: settings.changed(**changes)) if changes else None
    settings = begun.record.settings
    engine = asked.engine or settings.engine.name
    with locked(asked.lock_clocks, settings.device, engine), told(asked, begun), front(asked, ()) as shown:
        ending = door(asked).resume(asked.run, shown, asker(), answer, change)
    return close(ending, asked)
