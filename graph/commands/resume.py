"""`run.py resume`: go on with a run."""

from __future__ import annotations

from typing import Annotated, Literal

from graph.commands.opened import asker, close, door, front, told
from graph.commands.options import CHANGES, Command, Working, answered_by
from graph.request import Place
from harness.options import Option, given
from nodes.options import RunOptions

REST = "for the rest of the run"


class ResumeCommand(Working, Command):
    """Go on with a run from its last checkpoint."""

    run: Annotated[str, Option("RUN", positional=True)]
    answer: Annotated[str | None, Option("yes|no|@FILE")] = None
    """The answer that a paused run waits for; @FILE: an edit."""
    changes: Annotated[RunOptions, Option(group=REST, only=CHANGES, usual="as before")] = RunOptions()
    policy: Annotated[Literal["rules", "chat", "replay"] | None, Option(group=REST)] = None
    """Who answers for all roles from here on."""
    model: Annotated[str, Option("NAME", group=REST)] = ""
    """Language model for all roles from here on."""
    place: Annotated[Place, Option(group=REST, usual="as before")] = Place()

    def go(self) -> int:
        from graph.asking import from_option
        from graph.runs import Run
        from harness.timing.clocks import locked

        begun = Run.find(self.runs_dir, self.run)
        answer = from_option(self.answer) if self.answer is not None else None
        changes = given(self.changes) | answered_by(self.policy, self.model)
        if "place" in self.model_fields_set:
            changes["engine"] = self.place.choice()
        change = (lambda settings: settings.changed(**changes)) if changes else None
        settings = begun.record.settings
        engine = changes.get("engine", settings.engine).name
        with locked(self.lock_clocks, settings.device, engine), told(self.on_end, begun), front(self, ()) as shown:
            ending = door(self.runs_dir, self.checkpointer).resume(self.run, shown, asker(), answer, change)
        return close(ending, self)
