"""`run.py memory`: what runs learned: list it, export it, forget it."""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from typing import TYPE_CHECKING

from graph.commands.options import EXIT_USAGE, Parser, common

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from graph.memory import Entry

FIELDS = ("kernel", "family", "device", "architecture", "bound", "outcome", "run")


def parser() -> argparse.ArgumentParser:
    made = Parser(prog="run.py memory", allow_abbrev=False, description="What runs learned, and later ones are shown.")
    made.add_argument("what", choices=("list", "export", "forget"), nargs="?", default="list", help="(list)")
    made.add_argument("--all", action="store_true", help="forget: all of it")
    for name in FIELDS:
        made.add_argument(f"--{name}", metavar="PATTERN", help="only these; * and ? stand for letters")
    common(made)
    made.set_defaults(go=go)
    return made


def go(asked: argparse.Namespace) -> int:
    from graph import checkpoints, memory

    wanted = {name: pattern for name in FIELDS if (pattern := getattr(asked, name)) is not None}
    if asked.what == "forget" and not wanted and not asked.all:
        print("run.py memory forget: say which, such as --run RUN or --kernel NAME, or --all", file=sys.stderr)
        return EXIT_USAGE
    if asked.checkpointer:
        checkpoints.check_url(asked.checkpointer)
    elif not (asked.runs_dir / memory.FILE).exists():
        print(json.dumps([]) if asked.json else f"{asked.runs_dir} holds no memory", file=sys.stdout)
        return 0
    with memory.store(asked.runs_dir, asked.checkpointer) as store:
        found = [entry for entry in memory.entries(store) if _wanted(entry, wanted)]
        if asked.what == "forget":
            return _forget(store, found, asked)
    if asked.what == "export":
        for entry in found:
            print(json.dumps(entry.value, ensure_ascii=True))
        return 0
    return _list(found, asked)


def _wanted(entry: Entry, wanted: dict[str, str]) -> bool:
    said = {**entry.value, "run": entry.value.get("run_id", "")}
    return all(fnmatch.fnmatchcase(str(said.get(name, "")), pattern) for name, pattern in wanted.items())


def _forget(store: BaseStore, found: list[Entry], asked: argparse.Namespace) -> int:
    from graph import memory

    memory.forget(store, found)
    print(json.dumps({"forgotten": len(found)}) if asked.json else f"{len(found)} forgotten")
    return 0


def _list(found: list[Entry], asked: argparse.Namespace) -> int:
    """Plain lines, whose last column may be long."""
    if asked.json:
        print(json.dumps([entry.value for entry in found], indent=1))
        return 0
    from harness.report.inert import one_line

    lessons = [lesson for entry in found if (lesson := entry.lesson) is not None]
    rows = [("family", "kernel", "device", "bound", "over then", "over all", "came to", "run", "change")]
    for lesson in lessons:
        ratios = [f"{value:.3f}x" if value else "-" for value in (lesson.gain, lesson.speedup)]
        came = "kept" if lesson.kept else str(lesson.outcome) if not lesson.gain else "not kept"
        where = (lesson.family, lesson.kernel, lesson.architecture, lesson.bound)
        rows.append((*where, *ratios, came, lesson.run_id, lesson.title))
    shown = [[one_line(word, 160) for word in row] for row in rows]
    widths = [max(len(row[at]) for row in shown) for at in range(len(rows[0]) - 1)]
    for row in shown:
        print("  ".join([*(word.ljust(width) for word, width in zip(row, widths, strict=False)), row[-1]]))
    print(f"{len(lessons)} of them")
    if len(found) > len(lessons):
        print(f"{len(found) - len(lessons)} more cannot be read, and no run uses them")
    return 0
