"""What a person sees while a run works. Nothing depends on it, and nothing in it can end the run.

`display(...)` gives the one that fits: LiveDisplay on a terminal, PlainDisplay, one line an event, everywhere else.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Concatenate, ParamSpec, TextIO, TypeVar

from rich.console import Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.spinner import Spinner
from rich.table import Table
from rich.text import Text

from harness.records import Interval, geometric_light
from harness.report.console import Console
from harness.report.inert import one_line
from harness.report.result import policy_text
from harness.report.table import word
from harness.report.words import count, duration, interval, percent, the_baseline, times
from nodes import agents
from nodes.roles import Attempt
from nodes.state import Incumbent, Settings, Spent, State

NODES = agents.describe_nodes() | {
    "baseline": "checking and timing the baseline",
    "approve_plans": "waiting for a yes",
    "approve_candidates": "waiting for a yes",
    "compile": "compiling",
    "verify": "checking against the reference",
    "tune": "searching the open integers",
    "measure": "timing against the baseline and the best so far",
    "select": "choosing the best so far",
    "contest": "contesting again what was unclear",
    "fallback": "meeting the source at uneven rows",
    "held_out": "meeting the held-out workloads",
}
LAST_ATTEMPTS = 6
LAST_WORDS = 3
MOST_WORKERS = 12
PROGRESS = "harness"
"""The kind of `say` that comes many times a second; the last one is enough."""
PROGRESS_EVERY_S = 2.0
REFRESH_HZ = 4
QUIET_S, QUIET_AT_MOST_S = 5.0, 30.0
"""Plain lines: after so long without one a line says what is still at work; then after twice that, and so on."""
SHOWN_FROM_S = 0.05
"""Plain lines: a node that ended sooner had nothing to do, such as an approval that nobody asked for."""

P = ParamSpec("P")
D = TypeVar("D", bound="Display")


def harmless(method: Callable[Concatenate[D, P], None]) -> Callable[Concatenate[D, P], None]:
    """A failure of the display turns the display off, with one line on standard error; the run goes on."""

    @functools.wraps(method)
    def guarded(self: D, *args: P.args, **kwargs: P.kwargs) -> None:
        if self.broken:
            return
        try:
            with self.lock:
                method(self, *args, **kwargs)
        except Exception as error:  # noqa: BLE001  whatever it is (a closed pipe, a bug of ours), a run is worth more
            self.turn_off(error)

    return guarded


class Display:
    """Events of a run, from any thread. A context manager: what it took over of the terminal is given back."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.broken = ""
        self.workers: Callable[[], list[tuple[str, str]]] = list
        """(worker, what it is doing) of an engine with several."""

    def node_started(self, node: str) -> None: ...
    def node_finished(self, node: str, update: dict[str, Any] | None = None) -> None: ...
    def say(self, kind: str, text: str) -> None: ...
    def state(self, state: State) -> None: ...

    @contextmanager
    def paused(self) -> Iterator[None]:
        """The terminal is somebody else's for a while: a question to the person."""
        yield

    def close(self) -> None: ...

    def turn_off(self, error: BaseException) -> None:
        self.broken = f"{type(error).__name__}: {error}"
        with contextlib.suppress(Exception):
            self.close()
        with contextlib.suppress(OSError, ValueError):  # standard error may be closed as well
            print(f"the display is off ({one_line(self.broken, 160)}); the run goes on", file=sys.stderr)

    def __enter__(self) -> Display:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Terminal(Console):
    def on_broken_pipe(self) -> None:
        """rich would raise SystemExit and end the run; `harmless` turns the display off instead."""
        raise  # the BrokenPipeError that rich is handling


def display(*, json: bool = False, why: tuple[str, ...] = (), stdout: TextIO | None = None) -> Display:
    """The display for this terminal. With `json`, standard output belongs to the record: this writes to standard error.

    `why` are the first lines: why this device, why this policy.
    """
    console = Terminal(file=stdout, stderr=json, highlight=False)
    if console.is_terminal and not console.is_dumb_terminal:
        with contextlib.suppress(OSError):  # a terminal that hung up
            return LiveDisplay(console, why)
    return PlainDisplay(stdout or (sys.stderr if json else sys.stdout), why)


def attempt_line(attempt: Attempt) -> Text:
    """`2  Sixteen bytes a load  PASSED 1.27x, kept` and, where it was not kept, why."""
    text = Text()
    text.append(f"{attempt.round:>3}  ", style="dim")
    text.append(one_line(attempt.plan.title, 60), style="bold" if attempt.accepted else "")
    text.append("  ")
    text.append_text(word(attempt.outcome))
    if attempt.speedup is not None:
        text.append(f" {times(attempt.speedup)}")
        text.append(", kept" if attempt.accepted else ", not kept", style="bold green" if attempt.accepted else "dim")
    if attempt.turns:
        text.append(f", in {count(attempt.turns, 'answer')}", style="dim")
    if attempt.reason and not attempt.accepted:
        text.append(f"  {one_line(attempt.reason, 120)}", style="dim")
    return text


def worker_lines(workers: list[tuple[str, str]]) -> list[Text]:
    """One line each, the busy ones first; of a large cluster the first few and how many more."""
    shown = sorted(workers, key=lambda worker: (worker[1] == "idle", worker[0]))
    lines = [Text(f"  {one_line(name, 40)}  {one_line(doing, 160)}") for name, doing in shown[:MOST_WORKERS]]
    if len(shown) > MOST_WORKERS:
        idle = sum(doing == "idle" for _name, doing in shown)
        lines.append(Text(f"  and {len(shown) - MOST_WORKERS} more; {idle} of {len(shown)} workers idle"))
    for line in lines:
        line.style, line.no_wrap, line.overflow = "dim", True, "ellipsis"
    return lines


def speedup_of(incumbent: Incumbent) -> Interval | None:
    return incumbent.verdict.suite.speedup if incumbent.verdict.suite else None


def budget_left(settings: Settings, spent: Spent, since: float = 0.0) -> str:
    """`48 s of 1 min 00 s, 12,000 of 50,000 tokens`: what the run's limits leave; `since` adds seconds in flight."""
    total, parts = spent.total, []
    if settings.budget.seconds is not None:
        left = max(0.0, settings.budget.seconds - spent.seconds - since)
        parts.append(f"{duration(left)} of {duration(settings.budget.seconds)}")
    if settings.budget.tokens is not None:
        left_tokens = max(0, settings.budget.tokens - total.tokens_in - total.tokens_out)
        parts.append(f"{left_tokens:,} of {settings.budget.tokens:,} tokens")
    if settings.budget.money_usd is not None:
        if total.money_usd is None:
            parts.append("money unknown (a price is not known)")
        else:
            parts.append(
                f"${max(0.0, settings.budget.money_usd - total.money_usd):.2f} of ${settings.budget.money_usd:.2f}"
            )
    return ", ".join(parts)


class PlainDisplay(Display):
    """One line an event, for pipes, files and logs: `  12.4 s  verify     INCORRECT: ...`."""

    def __init__(self, file: TextIO, why: tuple[str, ...] = (), quiet_s: float = QUIET_S) -> None:
        super().__init__()
        self.file = file
        self.began = self.line_at = time.monotonic()
        self.node_began: dict[str, float] = {}
        self.progress_at = float("-inf")
        self.progress = ""
        self.seen: State = {}
        self.asking = False
        self.quiet_s, self.patience_s = quiet_s, quiet_s
        self.ended = threading.Event()
        for line in why:
            self.say("start", line)
        threading.Thread(target=self._watch, name="display", daemon=True).start()

    def _watch(self) -> None:
        while not self.broken and not self.ended.wait(min(0.5, self.quiet_s)):
            self._still()

    @harmless
    def _still(self) -> None:
        """A line where there was none for a while: silence looks like a hang."""
        clock = time.monotonic()
        if self.asking or self.ended.is_set() or clock - self.line_at < self.patience_s:
            return
        patience_s = min(2 * self.patience_s, max(QUIET_AT_MOST_S, self.quiet_s))
        at_work = [f"{node} for {duration(clock - began)}" for node, began in self.node_began.items()]
        said = self.progress or NODES.get(next(iter(self.node_began), ""), "")
        self._line("still at work", ": ".join(filter(None, [", ".join(at_work), said])) or "starting")
        self.patience_s = patience_s

    @contextmanager
    def paused(self) -> Iterator[None]:
        self.asking = True
        try:
            yield
        finally:
            self.asking, self.line_at = False, time.monotonic()

    def close(self) -> None:
        self.ended.set()

    @harmless
    def node_started(self, node: str) -> None:
        self.node_began[node] = time.monotonic()
        self.progress = ""

    @harmless
    def node_finished(self, node: str, update: dict[str, Any] | None = None) -> None:
        took = time.monotonic() - self.node_began.pop(node, time.monotonic())
        if took >= SHOWN_FROM_S:
            self._line(node, duration(took))

    @harmless
    def say(self, kind: str, text: str) -> None:
        if self.node_began or kind == PROGRESS:  # `evaluate` has no nodes
            self.progress = text
        if kind == PROGRESS:
            clock = time.monotonic()
            if clock - self.progress_at < PROGRESS_EVERY_S:
                return
            self.progress_at = clock
        self._line(kind, text)

    @harmless
    def state(self, state: State) -> None:
        for kind, text in changes(self.seen, state):
            self._line(kind, text)
        self.seen = dict(state)  # type: ignore[assignment]

    def _line(self, kind: str, text: str) -> None:
        clock = duration(time.monotonic() - self.began)
        words = f"{clock:>12}  {one_line(kind, 20):<18}  {one_line(text, 400)}\n"
        encoding = getattr(self.file, "encoding", None) or "utf-8"
        self.file.write(words.encode(encoding, "replace").decode(encoding))
        self.file.flush()
        self.line_at, self.patience_s = time.monotonic(), self.quiet_s


def changes(before: State, after: State) -> list[tuple[str, str]]:
    """What is new in a state, as (kind, sentence)."""
    said: list[tuple[str, str]] = []
    if "settings" in after and "settings" not in before:
        settings = after["settings"]
        enough = settings.stop.enough_seconds
        limits = ", ".join(
            [
                *([f"none begun after {duration(enough)} once something is faster"] if enough is not None else []),
                *([duration(settings.budget.seconds)] if settings.budget.seconds is not None else []),
                *([f"{settings.budget.tokens:,} tokens"] if settings.budget.tokens is not None else []),
                *([f"${settings.budget.money_usd:.2f}"] if settings.budget.money_usd is not None else []),
            ]
        )
        said.append(
            (
                "run",
                f"{settings.run_id}: {settings.kernel} on {settings.device}, policy {policy_text(settings.policy)}, "
                f"against {the_baseline(settings.baseline)}, at most {count(settings.stop.rounds, 'round')}"
                f"{', ' + limits if limits else ''}",
            )
        )
    if "device" in after and "device" not in before:
        said.append(("device", f"{after['device'].name} ({after['device'].architecture})"))
    if "baseline" in after and "baseline" not in before:
        verdict = after["baseline"]
        said.append(("baseline", verdict.outcome + (f": {verdict.reason}" if verdict.reason else "")))
    if "finding" in after and after["finding"] != before.get("finding"):
        said.append(("finding", f"{after['finding'].likely_bound}: {after['finding'].summary}"))
    known = {(attempt.round, attempt.plan.id) for attempt in before.get("attempts", ())}
    for attempt in after.get("attempts", ()):
        if (attempt.round, attempt.plan.id) not in known:
            said.append(("attempt", "round" + attempt_line(attempt).plain))
    now, then = after.get("incumbent"), before.get("incumbent")
    if now and now.round and (then is None or now.candidate != then.candidate):
        said.append(("incumbent", f"{now.candidate[:12]} of round {now.round}, {interval(speedup_of(now))}"))
    if "held_out" in after and "held_out" not in before:
        verdict = after["held_out"]
        suite = interval(verdict.suite.speedup) if verdict.suite else verdict.reason
        said.append(("held out", f"{verdict.outcome}: {suite}"))
    if after.get("disqualified") and not before.get("disqualified"):
        said.append(("disqualified", after["disqualified"]))
    if "stop" in after and "stop" not in before:
        said.append(("stop", after["stop"].value))
    return said


class LiveDisplay(Display):
    """A panel at the bottom of the terminal, redrawn in the background so that clocks tick while a node works."""

    def __init__(self, console: Console, why: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.console = console
        self.why = why
        self.began = time.monotonic()
        self.state_at = self.began
        self.active: dict[str, float] = {}
        self.progress = ""
        self.words: deque[tuple[str, str]] = deque(maxlen=LAST_WORDS)
        self.now: State = {}
        self.spinner = Spinner("dots", style="cyan")
        self.live: Live | None = self._new_live()
        self.live.start()

    def _new_live(self) -> Live:
        return Live(
            console=self.console,
            get_renderable=self._panel,
            refresh_per_second=REFRESH_HZ,
            transient=True,  # the final table takes its place
            redirect_stdout=not self.console.stderr,  # with --json, standard output is not ours
            redirect_stderr=True,
        )

    @harmless
    def node_started(self, node: str) -> None:
        self.active[node] = time.monotonic()
        self.progress = ""

    @harmless
    def node_finished(self, node: str, update: dict[str, Any] | None = None) -> None:
        self.active.pop(node, None)

    @harmless
    def say(self, kind: str, text: str) -> None:
        if kind == PROGRESS:
            self.progress = one_line(text, 300)
            return
        self.words.append((one_line(kind, 24), one_line(text, 300)))

    @harmless
    def state(self, state: State) -> None:
        self.now = dict(state)  # type: ignore[assignment]
        self.state_at = time.monotonic()

    @contextmanager
    def paused(self) -> Iterator[None]:
        was, self.live = self.live, None
        if was is not None:
            was.stop()
        try:
            yield
        finally:
            if was is not None and not self.broken:
                self.live = self._new_live()
                self.live.start()

    def close(self) -> None:
        live, self.live = self.live, None
        if live is not None:
            with contextlib.suppress(OSError, ValueError):  # a terminal that hung up
                live.stop()

    def _panel(self) -> RenderableType:
        """Drawn by rich's thread. An exception there would end only that thread, silently, so it is shown instead."""
        try:
            with self.lock:
                return self.panel()
        except Exception as error:  # noqa: BLE001
            return Text(f"the display failed ({one_line(f'{type(error).__name__}: {error}', 120)}); the run goes on")

    def panel(self) -> RenderableType:
        """The whole picture at this moment."""
        clock = time.monotonic()
        parts: list[RenderableType] = [self._header()]
        if "incumbent" in self.now:
            parts.append(self._incumbent(self.now["incumbent"]))
        parts.append(self._activity(clock))
        parts += worker_lines(self.workers())
        attempts = self.now.get("attempts", [])[-LAST_ATTEMPTS:]
        for attempt in attempts:
            line = attempt_line(attempt)
            line.no_wrap, line.overflow = True, "ellipsis"
            parts.append(line)
        left = self._left(clock)
        if left:
            parts.append(Text(left, style="dim", no_wrap=True, overflow="ellipsis"))
        return Padding(Group(*parts), (1, 1, 0, 1))

    def _header(self) -> RenderableType:
        settings = self.now.get("settings")
        lines = Text(no_wrap=True, overflow="ellipsis")
        if settings is None:
            lines.append("Astrolabe", style="bold")
        else:
            facts = self.now.get("device")
            where = facts.name if facts else settings.device
            lines.append(one_line(settings.kernel, 80), style="bold cyan")
            lines.append(f" on {one_line(where, 60)}, policy {policy_text(settings.policy)}, ")
            lines.append(f"against {the_baseline(one_line(settings.baseline, 60))}  ")
            lines.append(one_line(settings.run_id, 60), style="dim")
        for line in self.why:
            lines.append(f"\n{one_line(line, 200)}", style="dim")
        return lines

    def _incumbent(self, incumbent: Incumbent) -> RenderableType:
        settings, text = self.now["settings"], Text(no_wrap=True, overflow="ellipsis")
        text.append(f"round {self.now.get('round', 0)} of {settings.stop.rounds}", style="bold")
        speedup = speedup_of(incumbent)
        if incumbent.round and speedup:
            text.append("   best so far ")
            text.append(times(speedup.median), style="bold green")
            text.append(f" ({speedup.low:.2f} – {speedup.high:.2f}), round {incumbent.round}")
        else:
            text.append("   best so far: the baseline")
        if share := geometric_light(incumbent.verdict.timings):
            text.append(f", {percent(share)} of speed of light")
        return text

    def _activity(self, clock: float) -> RenderableType:
        """The node at work, for how long, and what it is doing; under it the last things it had to say."""
        active = Table.grid(padding=(0, 1), expand=True)
        active.add_column()
        active.add_column(no_wrap=True, style="bold")
        active.add_column(no_wrap=True, justify="right", min_width=6)
        active.add_column(no_wrap=True, overflow="ellipsis", style="dim", ratio=1)
        idle = ("finishing", self.state_at) if "baseline" in self.now else ("starting", self.began)
        for node, began in self.active.items() or [idle]:
            doing = Text(self.progress or NODES.get(node, ""))
            active.add_row(self.spinner, Text(one_line(node, 24)), duration(clock - began), doing)
        said = [Text(f"  {kind}: {text}", style="dim", no_wrap=True, overflow="ellipsis") for kind, text in self.words]
        return Group(active, *said)

    def _left(self, clock: float) -> str:
        settings = self.now.get("settings")
        if settings is None:
            return ""
        spent = self.now.get("spent", Spent())
        since = clock - self.state_at if self.active else 0.0
        left = budget_left(settings, spent, since)
        tokens = spent.total.tokens_in + spent.total.tokens_out
        used = duration(spent.seconds + since) + (f", {count(tokens, 'token')}" if tokens else "")
        rounds = count(max(0, settings.stop.rounds - self.now.get("round", 0)), "more round")
        return f"spent {used}; left {', '.join(filter(None, [rounds, left]))}. Ctrl-C stops; nothing finished is lost."
