"""`run.py compare`: two runs or files of results side by side."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from graph.commands.opened import door
from graph.commands.options import Parser, common


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py compare", allow_abbrev=False,
        description="Two runs, or two files of results (result.json, or what `evaluate --json` printed), side by side.",
    )  # fmt: skip
    made.add_argument("first", metavar="RUN|FILE")
    made.add_argument("second", metavar="RUN|FILE")
    made.add_argument("--output", type=Path, metavar="FILE", help="a picture as well: .svg or .png")
    common(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import compare, draw
    from graph.runs import Run
    from harness.report import plot, table

    def of_run(name: str):
        return door(asked).result(Run.find(asked.runs_dir, name))

    both = compare.compare(*(compare.find(name, of_run) for name in (asked.first, asked.second)))
    first, second = both.first.name, both.second.name
    if asked.output:
        rows = [(f"{pair.first.label} {pair.first.dtype} {pair.first.cache}", pair.ratio) for pair in both.pairs]
        title = f"{both.first.kernel}: {second} over {first}"
        draw.save(plot.forest(rows, title, f"{first} is faster", f"{second} is faster"), asked.output)
    if asked.json:
        print(json.dumps(both.as_json(), indent=1))
        return 0
    from harness.report.console import Console

    shown = [(pair.first, pair.second, pair.ratio) for pair in both.pairs]
    table.print_pairs(shown, first, second, both.overall, both.notes, Console(highlight=False))
    if asked.output:
        print(asked.output)
    return 0
