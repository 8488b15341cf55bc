"""`run.py show`: a run's attempts."""

from __future__ import annotations

import argparse

from graph.commands.opened import door, found
from graph.commands.options import Parser, common


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="run.py show", allow_abbrev=False, description="A run's attempts.")
    made.add_argument("run", metavar="RUN")
    common(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    run = found(asked)
    result = door(asked).result(run)
    if asked.json:
        print(result.model_dump_json(indent=1, ensure_ascii=True))
        return 0
    from harness.report.console import Console
    from harness.report.table import print_attempts

    print_attempts(result, Console(highlight=False))
    if result.status not in ("finished", "running"):
        print(f"go on with: {run.command('resume')}")
    return 0
