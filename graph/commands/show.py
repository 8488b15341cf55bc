"""`run.py show`: a run's attempts."""

from __future__ import annotations

from typing import Annotated

from graph.commands.opened import find_run, open_service
from graph.commands.options import Command, OfRuns
from harness.options import Option


class ShowCommand(OfRuns, Command):
    """A run's attempts."""

    run: Annotated[str, Option("RUN", positional=True)]
    """Its name, as `run.py runs` lists it."""

    def go(self) -> int:
        run = find_run(self.runs_dir, self.run)
        result = open_service(self.runs_dir, self.checkpointer).result(run)
        if self.as_json:
            print(result.model_dump_json(indent=1, ensure_ascii=True))
            return 0
        from harness.report.console import Console
        from harness.report.table import print_attempts

        print_attempts(result, Console(highlight=False))
        if result.status not in ("finished", "running"):
            print(f"go on with: {run.command('resume')}")
        return 0
