"""`run.py fork`: a new run from a checkpoint of another."""

from __future__ import annotations

from typing import Annotated, Literal

from graph.commands.opened import asker, close, door, front, told
from graph.commands.options import CHANGES, UNSAID, Command, Working, answered_by
from harness.options import Option, command_line, given
from nodes.options import RunOptions


class ForkCommand(Working, Command):
    """A new run from a checkpoint of another."""

    run: Annotated[str, Option("RUN", positional=True)]
    checkpoint: Annotated[str, Option("ID")]
    """As `history RUN` lists it; any unique part of it."""
    run_id: Annotated[str, Option("NAME")] = ""
    """Name the new run."""
    changes: Annotated[RunOptions, Option(only=CHANGES, usual="as before")] = RunOptions()
    policy: Annotated[Literal["rules", "chat", "replay"] | None, Option()] = None
    """Who answers for all roles of the new run."""
    model: Annotated[str, Option("NAME")] = ""
    """Language model for all roles of the new run."""

    def go(self) -> int:
        from graph.runs import Run, new_id, now, valid_id
        from harness.timing.clocks import locked

        origin = Run.find(self.runs_dir, self.run).record
        checkpoint = door(self.runs_dir, self.checkpointer).checkpoint_id(self.run, self.checkpoint)
        name = valid_id(self.run_id) if self.run_id else new_id(origin.kernel)
        why = f"forked from {self.run} at checkpoint {checkpoint}"
        changes = (
            given(self.changes)
            | answered_by(self.policy, self.model)
            | {
                "run_id": name,
                "why": (*origin.settings.why, why),
                "command": command_line(self.with_(checkpoint=checkpoint), "fork", UNSAID),
            }
        )
        new = origin.model_copy(
            update={
                "run_id": name,
                "created": now(),
                "settings": origin.settings.changed(**changes),
                "forked_from": f"{self.run}@{checkpoint}",
            }
        )
        made = Run(self.runs_dir, name)
        settings = origin.settings
        with locked(
            self.lock_clocks, settings.device, settings.engine.name
        ):  # before there is a run, where it may not be
            made.reserve()
            with told(self.on_end, made), front(self, (why,)) as shown:
                ending = door(self.runs_dir, self.checkpointer).fork(self.run, checkpoint, new, shown, asker())
        return close(ending, self)
