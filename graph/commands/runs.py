"""`run.py runs`: the list of them."""

from __future__ import annotations

import fnmatch
import json
import sys
from typing import Literal

from graph.commands.options import Command, OfRuns, Pattern


class RunsCommand(OfRuns, Command):
    """List the runs, oldest first."""

    sort: Literal["started", "kernel", "status", "speedup"] = "started"
    reverse: bool = False
    """The last first."""
    kernel: Pattern = None
    device: Pattern = None
    status: Pattern = None
    policy: Pattern = None

    def go(self) -> int:
        from graph.runs import RunError, every
        from harness.report.result import policy_text
        from harness.report.table import RunLine, print_runs

        lines = []
        for found in every(self.runs_dir):
            try:
                record, status = found.record, found.status
            except RunError as error:  # one damaged record does not hide the others
                print(error, file=sys.stderr)
                continue
            lines.append(
                RunLine(
                    run_id=found.id,
                    kernel=record.kernel,
                    device=record.settings.device,
                    policy=policy_text(record.settings.policy),
                    status=status.state,
                    round=status.round,
                    rounds=record.settings.stop.rounds,
                    speedup=status.speedup,
                    started=f"{record.created:%Y-%m-%d %H:%M}",
                )
            )
        every_one = len(lines)
        for field in ("kernel", "device", "status", "policy"):
            if pattern := getattr(self, field):
                lines = [line for line in lines if fnmatch.fnmatchcase(getattr(line, field), pattern)]
        if self.sort != "started":  # as `every` has them; a run without a speedup comes before those with one
            lines.sort(key=lambda line: getattr(line, self.sort) or (0.0 if self.sort == "speedup" else ""))
        if self.reverse:
            lines.reverse()
        if self.as_json:
            print(json.dumps([vars(line) for line in lines], indent=1))
        elif not lines:
            print(f"none of the {every_one} runs in {self.runs_dir}" if every_one else f"{self.runs_dir} holds no run")
        else:
            from harness.report.console import Console

            print_runs(lines, Console(highlight=False))
        return 0
