"""`run.py history`: a run's checkpoints."""

from __future__ import annotations

import argparse
import json

from graph.commands.opened import door, found
from graph.commands.options import Parser, common


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="run.py history", allow_abbrev=False, description="A run's checkpoints, oldest first.")
    made.add_argument("run", metavar="RUN")
    common(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    rows = [
        {
            "checkpoint": snapshot.config["configurable"]["checkpoint_id"],
            "step": (snapshot.metadata or {}).get("step"),
            "created": snapshot.created_at,
            "next": list(snapshot.next),
            "round": snapshot.values.get("round", 0),
            "attempts": len(snapshot.values.get("attempts", ())),
            "incumbent": snapshot.values["incumbent"].candidate if "incumbent" in snapshot.values else "",
        }
        for snapshot in reversed(door(asked).history(found(asked)))
    ]
    if asked.json:
        print(json.dumps(rows, indent=1))
        return 0
    print(f"{'checkpoint':<36}  {'created':<19}  round  attempts  incumbent  next")
    for row in rows:
        created = (row["created"] or "")[:19].replace("T", " ")
        following = ", ".join(row["next"]).replace("__start__", "start") or "the end"
        print(
            f"{row['checkpoint']:<36}  {created:<19}  {row['round']:>5}  {row['attempts']:>8}  "
            f"{row['incumbent'][:9]:<9}  {following}"
        )
    return 0
