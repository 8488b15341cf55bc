"""`run.py campaign`: every problem of a suite."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from graph.commands.opened import door
from graph.commands.options import EXIT_INTERRUPTED, Parser, budget, number, of_problems, protocol


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py campaign", allow_abbrev=False,
        description="Every problem of a suite as a run of its own. The same command goes on where it was killed.",
    )  # fmt: skip
    made.add_argument(
        "--suite",
        required=True,
        metavar="NAME|PATH",
        help="starter, or a checkout of KernelBench (PATH/level1/23_Softmax.py)",
    )
    made.add_argument("--levels", metavar="1,2,3", default="", help="only these")
    made.add_argument("--name", metavar="NAME", help="name the campaign")
    made.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    made.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="where it is kept (runs)")
    made.add_argument("--no-live", action="store_true", help="plain lines instead of the live table")
    made.add_argument("--json", action="store_true", help="summary.json on standard output, nothing else there")
    options = made.add_argument_group("for every problem, as in `run.py --kernel FILE.py`")
    of_problems(options)
    protocol(options)
    budget(options)
    options.add_argument("--repairs", type=number(int, 0), metavar="N")
    options.add_argument("--tune-seconds", type=number(float, 0), metavar="S")
    options.add_argument("--policy", choices=("auto", "rules", "chat"), default="auto")
    options.add_argument("--model", metavar="NAME")
    options.add_argument("--agents", choices=("four", "single"))
    options.add_argument(
        "--memory", choices=("on", "off"), default="off", help="let problems learn from those before them (off)"
    )
    options.add_argument("--sandbox", choices=("auto", "require"))
    made.set_defaults(go=go)
    return made


def run_options(asked: argparse.Namespace) -> list[str]:
    """The options that every problem's run gets."""
    words: list[str] = []
    for option in (
        "own-kernels", "compare", "rounds", "width", "seconds", "tokens", "money", "repairs", "tune-seconds", "policy",
        "model", "agents", "memory", "sandbox",
    ):  # fmt: skip
        value = getattr(asked, option.replace("-", "_"))
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [f"--{option}", str(one)]
    return words


def go(asked: argparse.Namespace) -> int:
    from graph import campaign as campaigns
    from graph.campaign_live import Board, summary
    from graph.choices import choose
    from graph.commands import run
    from graph.runs import RunError
    from harness import device
    from kernels import suites

    on, _why = device.choose(asked.device)
    try:
        levels = tuple(int(level) for level in asked.levels.split(",") if level)
    except ValueError:
        raise RunError(f"--levels {asked.levels!r} is no list of numbers such as 1,2") from None
    problems = suites.problems(asked.suite, levels)
    words = [*run_options(asked), "--device", on]
    theirs = campaigns.by_kernelbench(on) if asked.protocol else None
    name = asked.name or f"{Path(asked.suite).resolve().name}-{on}"
    found = campaigns.Campaign(asked.runs_dir, name)
    found.begin(campaigns.asked_for(name, str(asked.suite), on, words, problems))

    def chosen(path: Path, run_id: str):
        each = ["--kernel", str(path), *words, "--run-id", run_id]
        settings = run.parser().parse_args(each)
        settings.words = each
        return choose(settings)

    out = sys.stderr if asked.json else sys.stdout
    with found.lock():
        board = Board(len(problems), found.entries(), out, live=not asked.no_live)
        with board.shown():
            whole = found.work(
                campaigns.Plan(chosen, lambda runs: door(asked, runs), lambda _question, _store: None, theirs), board
            )
    if not whole:
        print("interrupted; give the same command to go on", file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_INTERRUPTED)  # a node may still be at work in its thread; under sync durability it loses nothing
    if asked.json:
        print((found.folder / "summary.json").read_text(), end="")
    print(f"{summary(found.entries())}\n{board.so_far()}\n{found.folder / 'report.html'}", file=out)
    return 0
