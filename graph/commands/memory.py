"""`run.py memory`: what runs learned: list it, export it, forget it."""

from __future__ import annotations

import fnmatch
import json
import sys
from typing import TYPE_CHECKING, Annotated, Literal

from graph.commands.options import EXIT_USAGE, Command, OfRuns, Pattern
from harness.options import Option, Options, list_given

if TYPE_CHECKING:
    from langgraph.store.base import BaseStore

    from graph.memory import StoredLesson


class LessonFilter(Options):
    """Which of it."""

    kernel: Pattern = None
    family: Pattern = None
    device: Pattern = None
    architecture: Pattern = None
    bound: Pattern = None
    outcome: Pattern = None
    run: Pattern = None


class MemoryCommand(OfRuns, Command):
    """What runs learned, and later ones are shown."""

    what: Annotated[Literal["list", "export", "forget"], Option(positional=True)] = "list"
    all: bool = False
    """Forget: all of it."""
    wanted: LessonFilter = LessonFilter()

    def go(self) -> int:
        from graph import checkpoints, memory

        wanted = list_given(self.wanted)
        if self.what == "forget" and not wanted and not self.all:
            print("run.py memory forget: say which, such as --run RUN or --kernel NAME, or --all", file=sys.stderr)
            return EXIT_USAGE
        if self.checkpointer:
            checkpoints.check_url(self.checkpointer)
        elif not (self.runs_dir / memory.FILE).exists():
            print(
                json.dumps([])
                if self.as_json
                else f"{self.runs_dir} holds no memory: a run with --memory on leaves some",
                file=sys.stdout,
            )
            return 0
        with memory.store(self.runs_dir, self.checkpointer) as store:
            found = [entry for entry in memory.entries(store) if _wanted(entry, wanted)]
            if self.what == "forget":
                return _forget(store, found, self.as_json)
        if self.what == "export":
            for entry in found:
                print(json.dumps(entry.value, ensure_ascii=True))
            return 0
        return _list(found, self.as_json)


def _wanted(entry: StoredLesson, wanted: dict[str, str]) -> bool:
    said = {**entry.value, "run": entry.value.get("run_id", "")}
    return all(fnmatch.fnmatchcase(str(said.get(name, "")), pattern) for name, pattern in wanted.items())


def _forget(store: BaseStore, found: list[StoredLesson], as_json: bool) -> int:
    from graph import memory

    memory.forget(store, found)
    print(json.dumps({"forgotten": len(found)}) if as_json else f"{len(found)} forgotten")
    return 0


def _list(found: list[StoredLesson], as_json: bool) -> int:
    """Plain lines, whose last column may be long."""
    if as_json:
        print(json.dumps([entry.value for entry in found], indent=1))
        return 0
    from harness.report.inert import one_line

    lessons = [lesson for entry in found if (lesson := entry.lesson) is not None]
    rows: list[tuple[str, ...]] = [
        ("family", "kernel", "device", "bound", "over then", "over all", "came to", "run", "change")
    ]
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
