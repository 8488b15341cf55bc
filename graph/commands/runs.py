"""`run.py runs`: the list of them."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys

from graph.commands.options import Parser, common


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="run.py runs", allow_abbrev=False, description="List the runs, oldest first.")
    made.add_argument("--sort", choices=("started", "kernel", "status", "speedup"), default="started", help="(started)")
    made.add_argument("--reverse", action="store_true", help="the last first")
    for name, what in (("kernel", "a kernel"), ("device", "a device"), ("status", "a status"), ("policy", "a policy")):
        made.add_argument(f"--{name}", metavar=name.upper(), help=f"only those of {what}; * and ? stand for letters")
    common(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph.runs import RunError, every
    from harness.report.result import policy_text
    from harness.report.table import RunLine, print_runs

    lines = []
    for found in every(asked.runs_dir):
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
        if pattern := getattr(asked, field):
            lines = [line for line in lines if fnmatch.fnmatchcase(getattr(line, field), pattern)]
    if asked.sort != "started":  # as `every` has them; a run without a speedup comes before those with one
        lines.sort(key=lambda line: getattr(line, asked.sort) or (0.0 if asked.sort == "speedup" else ""))
    if asked.reverse:
        lines.reverse()
    if asked.json:
        print(json.dumps([vars(line) for line in lines], indent=1))
    elif not lines:
        print(f"none of the {every_one} runs in {asked.runs_dir}" if every_one else f"{asked.runs_dir} holds no run")
    else:
        from harness.report.console import Console

        print_runs(lines, Console(highlight=False))
    return 0
