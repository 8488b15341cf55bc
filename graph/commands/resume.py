"""`run.py resume`: go on with a run."""

from __future__ import annotations

from typing import Annotated, Literal

from graph.commands.opened import asker, check_on_end, choose_display, close, notify_on_end, open_service
from graph.commands.options import CHANGES, Command, Working, policy_changes
from graph.request import PlaceOptions
from harness.options import Option, list_given
from nodes.options import RunOptions

REST = "for the rest of the run"


class ResumeCommand(Working, Command):
    """Go on with a run from its last checkpoint."""

    run: Annotated[str, Option("RUN", positional=True)]
    """Its name, as `run.py runs` lists it."""
    answer: Annotated[str | None, Option("yes|no|@FILE")] = None
    """The answer that a paused run waits for; @FILE: an edit."""
    changes: Annotated[RunOptions, Option(group=REST, only=CHANGES, usual="as before")] = RunOptions()
    policy: Annotated[Literal["rules", "chat", "replay"] | None, Option(group=REST)] = None
    """Who answers for all roles from here on."""
    model: Annotated[str, Option("NAME", group=REST)] = ""
    """Language model for all roles from here on."""
    place: Annotated[PlaceOptions, Option(group=REST, usual="as before")] = PlaceOptions()

    def go(self) -> int:
        from graph.asking import from_option
        from graph.runs import RunFolder
        from harness.timing.clocks import lock

        check_on_end(self.on_end)
        begun = RunFolder.find(self.runs_dir, self.run)
        answer = from_option(self.answer) if self.answer is not None else None
        changes = list_given(self.changes) | policy_changes(self.policy, self.model)
        if "place" in self.model_fields_set:
            changes["engine"] = self.place.choice()
        change = (lambda settings: settings.with_changes(**changes)) if changes else None
        settings = begun.record.settings
        engine = changes.get("engine", settings.engine).name
        with (
            lock(self.lock_clocks, settings.device, engine),
            notify_on_end(self.on_end, begun),
            choose_display(self, ()) as shown,
        ):
            ending = open_service(self.runs_dir, self.checkpointer).resume(self.run, shown, asker(), answer, change)
        return close(ending, self)
