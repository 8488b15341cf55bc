"""What a person sees while a campaign works: done, running, fast_1 so far, time left. Nothing depends on it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from graph.campaign import CampaignEntry, by_problem
from graph.live import MOST_WORKERS, NODES, worker_lines
from harness.report.campaign_page import EAGER, compare_with_one
from harness.report.console import Console
from harness.report.fast_p import correct_rate, fast_p, geometric_mean, worst
from harness.report.inert import one_line
from harness.report.words import count, duration, interval, percent, times
from nodes.state import State

LAST = 8
REASON = 600
"""Characters of a reason, which is wrapped."""


class QuietDisplay:
    """A run's own front inside a campaign: its node and last word go to the campaign's table."""

    def __init__(self, display: CampaignDisplay, name: str) -> None:
        self.display, self.name = display, name

    def node_started(self, node: str) -> None:
        self.display.doing[self.name] = NODES.get(node, node)

    def node_finished(self, node: str) -> None:
        pass

    def say(self, kind: str, text: str) -> None:
        if kind == "harness":
            self.display.doing[self.name] = text

    def state(self, state: State) -> None:
        pass

    def paused(self):
        return nullcontext()


class CampaignDisplay:
    """The table's facts."""

    def __init__(self, total: int, entries: list[CampaignEntry], out: TextIO, *, live: bool) -> None:
        self.total, self.entries = total, list(entries)
        self.before = len(entries)
        self.began = time.monotonic()
        self.running: dict[str, float] = {}
        """Problem -> when it began."""
        self.doing: dict[str, str] = {}
        self.workers: Callable[[], list[tuple[str, str]]] = list
        """(worker, what it is doing) of an engine with several."""
        self.console = Console(file=out, highlight=False)
        self.live = live and self.console.is_terminal

    @contextmanager
    def show(self) -> Iterator[CampaignDisplay]:
        if not self.live:
            yield self
            return
        with Live(get_renderable=self.render, console=self.console, refresh_per_second=4, transient=True):
            yield self

    # What graph.campaign asks of a watcher.

    def display_for(self, name: str) -> QuietDisplay:
        self.running[name], self.doing[name] = time.monotonic(), "importing"
        if not self.live:
            self.console.print(f"{len(self.entries) + len(self.running)}/{self.total} {name}", markup=False)
        return QuietDisplay(self, name)

    def record_end(self, entry: CampaignEntry) -> None:
        self.entries.append(entry)
        others = len(self.running) > 1
        self.running.pop(entry.id, None)
        if not self.live:
            said = f"{f'{entry.id}: ' if others else ''}{describe_entry(entry)}"
            self.console.print(Padding(Text(said), (0, 0, 0, 4), expand=False))
            self.console.print(f"    {self.so_far()}", markup=False, style="dim")

    def so_far(self) -> str:
        problems = [entry.solved for entry in by_problem(self.entries)]
        mean, least = geometric_mean(problems, EAGER), worst(problems, EAGER)
        return (
            f"{len(self.entries)} of {self.total} done, {percent(correct_rate(problems))} right, fast_1 "
            f"{percent(fast_p(problems, 1.0, EAGER))}{f', geometric mean {times(mean)}' if mean else ''}{f', worst {least}' if least else ''}{self.describe_left()}"
        )

    def describe_left(self) -> str:
        done = len(self.entries) - self.before
        if not done or len(self.entries) == self.total:
            return ""
        each = (time.monotonic() - self.began) / done
        return f", about {duration(each * (self.total - len(self.entries)))} left"

    def render(self) -> RenderableType:
        levels = Table(box=None, padding=(0, 2, 0, 0))
        for title in ("level", "done", "right", "fast_1", "fast_2", "geometric mean", "worst"):
            levels.add_column(title, justify="left" if title == "level" else "right")
        every = [entry.solved for entry in by_problem(self.entries)]
        for level in sorted({one.level for one in every}):
            problems = [one for one in every if one.level == level]
            mean = geometric_mean(problems, EAGER)
            levels.add_row(
                str(level), str(len(problems)), percent(correct_rate(problems)), percent(fast_p(problems, 1.0, EAGER)),
                percent(fast_p(problems, 2.0, EAGER)), times(mean) if mean else "–", worst(problems, EAGER) or "–",
            )  # fmt: skip
        now = [
            Text.assemble(
                (one_line(name, 60), "bold"),
                f"  {duration(time.monotonic() - began)}  ",
                (one_line(self.doing.get(name, ""), 80), "dim"),
                no_wrap=True,
            )
            for name, began in list(self.running.items())[:MOST_WORKERS]
        ]
        last = [Text(f"{entry.id}  {describe_entry(entry)}", style="dim") for entry in self.entries[-LAST:]]
        return Group(levels, Text(self.so_far()), *now, *worker_lines(self.workers()), *last)


def describe_entry(entry: CampaignEntry) -> str:
    """How one problem ended, on one line."""
    found = entry.solved.speedup.get(EAGER)
    word = entry.outcome or entry.state
    if entry.solved.correct and found:
        return f"{word}, {compare_with_one(found).lower()} {interval(found)}{f', {entry.worst}' if entry.worst else ''} in {duration(entry.seconds)}"
    return f"{word}: {one_line(entry.reason, REASON)} ({duration(entry.seconds)})"


def summary(entries: list[CampaignEntry]) -> str:
    states = {state: sum(entry.state == state for entry in entries) for state in ("done", "unfit", "failed")}
    return (
        f"{count(len(entries), 'problem')}: {states['done']} ended in a result, {states['unfit']} could not be worked on, "
        f"{states['failed']} failed"
    )
