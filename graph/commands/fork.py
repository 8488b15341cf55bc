"""`run.py fork`: a new run from a checkpoint of another."""

from __future__ import annotations

from typing import Annotated, Literal

from graph.commands.opened import asker, check_on_end, choose_display, close, notify_on_end, open_service
from graph.commands.options import CHANGES, UNSAID, Command, Working, policy_changes
from harness.options import Option, command_line, list_given
from nodes.options import RunOptions


class ForkCommand(Working, Command):
    """A new run from a checkpoint of another."""

    run: Annotated[str, Option("RUN", positional=True)]
    """Its name, as `run.py runs` lists it."""
    checkpoint: Annotated[str, Option("ID")]
    """A checkpoint as `history RUN` lists it; any unique part of its name."""
    run_id: Annotated[str, Option("NAME")] = ""
    """Name the new run."""
    changes: Annotated[RunOptions, Option(only=CHANGES, usual="as before")] = RunOptions()
    policy: Annotated[Literal["rules", "chat", "replay"] | None, Option()] = None
    """Who answers for all roles of the new run."""
    model: Annotated[str, Option("NAME")] = ""
    """Language model for all roles of the new run."""

    def go(self) -> int:
        from graph.runs import RunFolder, new_id, now, valid_id
        from harness.timing.clocks import lock

        check_on_end(self.on_end)
        origin = RunFolder.find(self.runs_dir, self.run).record
        checkpoint = open_service(self.runs_dir, self.checkpointer).checkpoint_id(self.run, self.checkpoint)
        name = valid_id(self.run_id) if self.run_id else new_id(origin.kernel)
        why = f"forked from {self.run} at checkpoint {checkpoint}"
        changes = (
            list_given(self.changes)
            | policy_changes(self.policy, self.model)
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
                "settings": origin.settings.with_changes(**changes),
                "forked_from": f"{self.run}@{checkpoint}",
            }
        )
        made = RunFolder(self.runs_dir, name)
        settings = origin.settings
        with lock(
            self.lock_clocks, settings.device, settings.engine.name
        ):  # before there is a run, where it may not be
            made.reserve()
            with notify_on_end(self.on_end, made), choose_display(self, (why,)) as shown:
                ending = open_service(self.runs_dir, self.checkpointer).fork(self.run, checkpoint, new, shown, asker())
        return close(ending, self)
