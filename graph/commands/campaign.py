"""`run.py campaign`: every problem of a suite."""

from __future__ import annotations

import argparse
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from graph.commands.opened import door, engine
from graph.commands.options import (
    BOTH,
    EXIT_INTERRUPTED,
    Parser,
    budget,
    number,
    numerics,
    of_problems,
    on_engine,
    protocol,
)

if TYPE_CHECKING:
    from graph.ahead import Ahead
    from graph.campaign import Campaign, Plan
    from harness.engines import Engine


def parser() -> argparse.ArgumentParser:
    made = Parser(
        prog="run.py campaign", allow_abbrev=False,
        description="Every problem of a suite as a run of its own. The same command goes on where it was killed.",
    )  # fmt: skip
    made.add_argument(
        "--suite",
        required=True,
        metavar="NAME|PATH",
        help="starter, or a checkout of KernelBench (PATH/level1/23_Softmax.py), flashinfer-bench or SOL-ExecBench, or one file; "
        "hf:ScalingIntelligence/KernelBench fetches it from the Hugging Face hub",
    )
    made.add_argument("--levels", metavar="1,2,3", default="", help="only these")
    made.add_argument(
        "--shuffle", type=number(int, 0), metavar="SEED",
        help="in an order drawn from SEED, levels mixed evenly: what was done by then is a sample of all (by number)",
    )  # fmt: skip
    made.add_argument(
        "--samples", type=number(int, 1), default=1, metavar="K",
        help="runs of each problem that know nothing of each other; the report has pass@k over them (1)",
    )  # fmt: skip
    made.add_argument("--name", metavar="NAME", help="name the campaign")
    made.add_argument("--device", choices=("auto", "cuda", "cpu"), default="auto")
    on_engine(made)
    made.add_argument("--runs-dir", type=Path, default=Path("runs"), metavar="DIR", help="where it is kept (runs)")
    made.add_argument("--no-live", action="store_true", help="plain lines instead of the live table")
    made.add_argument("--json", action="store_true", help="summary.json on standard output, nothing else there")
    options = made.add_argument_group("for every problem, as in `run.py --kernel FILE.py`")
    of_problems(options)
    numerics(options)
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
        "own-kernels", "numerics", "compare", "rounds", "width", "seconds", "tokens", "money", "repairs", "tune-seconds", "policy",
        "model", "agents", "memory", "sandbox",
    ):  # fmt: skip
        value = getattr(asked, option.replace("-", "_"))
        for one in value if isinstance(value, list) else [value]:
            words += [] if one is None else [f"--{option}", str(one)]
    return words


def go(asked: argparse.Namespace) -> int:
    from graph.runs import RunError

    if asked.protocol in BOTH and asked.engine != "process":
        raise RunError(f"--protocol {asked.protocol} times on this machine, beside our own times: leave --engine away")
    if asked.samples > 1 and asked.memory == "on":
        raise RunError("--samples are independent of each other: leave --memory on away, or take one sample")
    with engine(asked, every=True) as at_work:
        return _campaign(asked, at_work)


def _campaign(asked: argparse.Namespace, at_work: Engine) -> int:
    from graph import campaign as campaigns
    from graph.campaign_live import Board, summary

    on = at_work.device
    if asked.protocol is None:
        asked.protocol = "both" if on == "cuda" and at_work.here else "ours"
    words = [*run_options(asked), "--device", on]
    name = asked.name or f"{_suite_name(asked.suite)}-{on}"
    found = campaigns.Campaign(asked.runs_dir, name)
    problems = _problems(asked, found.folder)
    found.begin(campaigns.asked_for(name, str(asked.suite), on, words, problems, asked.samples))
    stop = None if at_work.here else threading.Event()
    kinds = at_work.kinds()
    ahead = found.folder.resolve() / "ahead"
    plans = [_plan(asked, words, one, kind if len(kinds) > 1 else "", stop, ahead) for kind, one in kinds.items()]
    out = sys.stderr if asked.json else sys.stdout
    with found.lock():
        entries = found.entries([plan.kind for plan in plans])
        board = Board(len(problems) * len(plans) * asked.samples, entries, out, live=not asked.no_live)
        board.workers = at_work.lines
        with board.shown(), _ahead(found, plans, at_work) as ahead:
            whole = found.work(plans, board, stop, ahead)
    if not whole:
        print("interrupted; give the same command to go on", file=sys.stderr)
        sys.stderr.flush()
        os._exit(EXIT_INTERRUPTED)  # a node may still be at work in its thread; under sync durability it loses nothing
    for plan in plans:
        suffix = f"-{campaigns.slug(plan.kind)}" if plan.kind else ""
        if asked.json:
            print((found.folder / f"summary{suffix}.json").read_text(), end="")
        print(
            f"{summary(campaigns.by_problem(found.entries([plan.kind])))}\n{found.folder / f'report{suffix}.html'}",
            file=out,
        )
    if len(plans) == 1:
        print(board.so_far(), file=out)
    return 0


@contextmanager
def _ahead(found: Campaign, plans: list[Plan], at_work: Engine) -> Iterator[Ahead | None]:
    """What reads and drafts the next problems, where there are cores for it on which nothing is timed."""
    from graph.ahead import Ahead, apart

    cores = at_work.cores()
    if not cores.spare:
        yield None
        return
    with apart(cores):
        waiting = list(dict.fromkeys(task.path for task in found.left(plans)))
        with closing(Ahead(plans[0].prepare, waiting, cores.spare, at_once=plans[0].at_once())) as ahead:
            yield ahead


def _suite_name(suite: str) -> str:
    from kernels.suites import hugging_face

    if hugging_face.is_one(suite):
        return hugging_face.name(suite)
    path = Path(suite).resolve()
    return path.stem if path.is_file() else path.name


def _problems(asked: argparse.Namespace, folder: Path) -> list[Path]:
    """`folder`: the campaign's, which keeps the files of a data set."""
    from graph.runs import RunError
    from kernels import suites
    from kernels.suites import hugging_face

    try:
        levels = tuple(int(level) for level in asked.levels.split(",") if level)
    except ValueError:
        raise RunError(f"--levels {asked.levels!r} is no list of numbers such as 1,2") from None
    suite = asked.suite
    if hugging_face.is_one(suite):
        suite = str(hugging_face.fetched(suite, folder.resolve() / "suite"))
    files = suites.problems(suite, levels)
    return files if asked.shuffle is None else suites.shuffled(files, asked.shuffle)


def _plan(
    asked: argparse.Namespace, words: list[str], at_work: Engine, kind: str, stop: threading.Event | None, ahead: Path
) -> Plan:
    """What the campaign does with a problem on that kind of device; `ahead` holds what is built of the next ones."""
    from graph import campaign as campaigns
    from graph.choices import choose
    from graph.commands import run
    from harness.store import Store
    from nodes import drafting

    place = ["--engine", asked.engine, "--device-model", kind or asked.device_model, "--tls", asked.tls]
    place += ["--insecure"] if asked.insecure else []

    def chosen(path: Path, run_id: str):
        each = ["--kernel", str(path), *words, *(place if not at_work.here else []), "--run-id", run_id]
        settings = run.parser().parse_args(each)
        settings.words = each
        return choose(settings, at_work)

    built: dict[Path, Store] = {}

    def prepare(path: Path) -> None:
        """What is found is kept in this process; what is wrong with the problem is said in its turn."""
        with suppress(*campaigns.UNFIT):
            choice = chosen(path, "")
            if choice.settings.policy["drafter"] != "rules":
                return
            draft = drafting.draft(choice.kernel.text, at_work.device, choice.settings.numerics).source
            if draft.strip() and at_work.here:
                store = Store(ahead / campaigns.entry_id(path))
                with at_work.evaluator(choice.kernel, store) as evaluator:
                    evaluator.build(store.put(draft))
                built[path] = store

    return campaigns.Plan(
        choose=chosen,
        prepare=prepare,
        built=built.get,
        door=lambda runs: door(asked, runs, at_work, stop),
        ask=lambda _question, _store: None,
        protocol=campaigns.by_kernelbench(at_work.device) if asked.protocol in BOTH else None,
        kind=kind,
        at_once=at_work.width,
    )
