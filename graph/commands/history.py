"""`run.py history`: a run's checkpoints."""

from __future__ import annotations

import json
from typing import Annotated

from graph.commands.opened import find_run, open_service
from graph.commands.options import Command, OfRuns
from harness.options import Option


class HistoryCommand(OfRuns, Command):
    """A run's checkpoints, oldest first."""

    run: Annotated[str, Option("RUN", positional=True)]
    """Its name, as `run.py runs` lists it."""

    def go(self) -> int:
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
            for snapshot in reversed(
                open_service(self.runs_dir, self.checkpointer).history(find_run(self.runs_dir, self.run))
            )
        ]
        if self.as_json:
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
