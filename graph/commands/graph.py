"""`run.py graph`: draws it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from graph.commands.opened import find_run, open_service
from graph.commands.options import Command, Database
from harness.options import Option


class GraphCommand(Database, Command):
    """Draw the graph; with RUN, the path that it took."""

    run: Annotated[str, Option("RUN", positional=True)] = ""
    """The run whose path is drawn; none: the graph alone."""
    output: Path | None = None
    """.svg, .png or .mmd (without: Mermaid on the terminal)."""

    def go(self) -> int:
        from graph import draw
        from graph.workflow import build

        compiled = build()
        counts = taken = None
        if self.run:
            counts, taken = draw_facts(self)
        if self.output is None:
            print(draw.mermaid(compiled), end="")
            return 0
        draw.write(compiled, self.output, counts, taken)
        print(self.output)
        return 0


def draw_facts(command: GraphCommand):
    from graph import draw

    snapshots = open_service(command.runs_dir, command.checkpointer).history(find_run(command.runs_dir, command.run))
    visits = snapshots[0].values["spent"].nodes if snapshots and "spent" in snapshots[0].values else {}
    counts = {name: (visit.count, visit.seconds) for name, visit in visits.items()}
    return counts, draw.count_edges(draw.path_of(snapshots))
