"""`run.py compare`: two runs or files of results side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from graph.commands.opened import open_service
from graph.commands.options import Command, OfRuns
from harness.options import Option


class CompareCommand(OfRuns, Command):
    """Two runs, or two files of results (result.json, or what `evaluate --json` printed), side by side."""

    first: Annotated[str, Option("RUN|FILE", positional=True)]
    second: Annotated[str, Option("RUN|FILE", positional=True)]
    output: Path | None = None
    """A picture as well: .svg or .png."""

    def go(self) -> int:
        from graph import compare
        from graph.runs import RunFolder
        from harness.report import plot, svg, table

        def of_run(name: str):
            return open_service(self.runs_dir, self.checkpointer).result(RunFolder.find(self.runs_dir, name))

        both = compare.compare(*(compare.find(name, of_run) for name in (self.first, self.second)))
        first, second = both.first.name, both.second.name
        if self.output:
            rows = [(f"{pair.first.label} {pair.first.dtype} {pair.first.cache}", pair.ratio) for pair in both.pairs]
            title = f"{both.first.kernel}: {second} over {first}"
            svg.save(plot.forest(rows, title, f"{first} is faster", f"{second} is faster"), self.output)
        if self.as_json:
            print(json.dumps(both.as_json(), indent=1))
            return 0
        from harness.report.console import Console

        shown = [(pair.first, pair.second, pair.ratio) for pair in both.pairs]
        table.print_pairs(shown, first, second, both.overall, both.notes, Console(highlight=False))
        if self.output:
            print(self.output)
        return 0
