"""`run.py graph`: draws it."""

from __future__ import annotations

import argparse
from pathlib import Path

from graph.commands.opened import door, found
from graph.commands.options import Parser, common


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py graph", allow_abbrev=False, description="Draw the graph; with RUN, the path that it took."
    )
    made.add_argument("run", metavar="RUN", nargs="?")
    made.add_argument(
        "--output", type=Path, metavar="FILE", help=".svg, .png or .mmd (without: Mermaid on the terminal)"
    )
    common(made, json_too=False)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import draw
    from graph.workflow import build

    compiled = build()
    counts = taken = None
    if asked.run:
        counts, taken = draw_facts(asked)
    if asked.output is None:
        print(draw.mermaid(compiled), end="")
        return 0
    draw.write(compiled, asked.output, counts, taken)
    print(asked.output)
    return 0


def draw_facts(asked: argparse.Namespace):
    from graph import draw

    snapshots = door(asked).history(found(asked))
    visits = snapshots[0].values["spent"].nodes if snapshots and "spent" in snapshots[0].values else {}
    counts = {name: (visit.count, visit.seconds) for name, visit in visits.items()}
    return counts, draw.taken_edges(draw.path_of(snapshots))
