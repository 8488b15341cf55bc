"""How a command opens a run, shows it and leaves it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from graph.commands.options import EXIT_INTERRUPTED, EXIT_PAUSED, EXIT_SAME, EXIT_USAGE, STARTED, Working

if TYPE_CHECKING:
    from graph.request import PlaceOptions
    from graph.runs import RunFolder
    from graph.session import Ending, RunService
    from harness.engines import Engine


def check_on_end(on_end: str) -> None:
    """Before there is a run. Raises RunError."""
    if on_end:
        from graph import hooks

        hooks.check_target(on_end)


@contextmanager
def notify_on_end(on_end: str, run: RunFolder) -> Iterator[None]:
    """Tells --on-end of a failure, too."""
    from graph import hooks

    try:
        yield
    except Exception as error:
        if on_end and (failed := hooks.tell(on_end, run, "failed", " ".join(str(error).split()))):
            print(failed, file=sys.stderr)
        raise


def choose_display(command: Working, why: tuple[str, ...], engine: Engine | None = None):
    from graph import live

    STARTED.set()
    shown: live.Display
    if command.no_live:
        shown = live.PlainDisplay(sys.stderr if command.as_json else sys.stdout, why)
    else:
        shown = live.display(json=command.as_json, why=why)
    if engine is not None:
        shown.workers, engine.say = engine.lines, lambda text: shown.say("cluster", text)
    return shown


def asker():
    from graph.asking import on_terminal

    return on_terminal


def open_service(
    runs_dir: Path, checkpointer: str = "", *, engine: Engine | None = None, stop: threading.Event | None = None
) -> RunService:
    """`engine`: one that is open already; without, each run opens its own. `stop` ends sessions, as Ctrl-C does."""
    from graph.opening import open_context
    from graph.session import RunService

    opening = partial(open_context, engine=engine) if engine is not None else open_context
    return RunService(runs_dir, opening, checkpointer, stop)


@contextmanager
def engine(place: PlaceOptions, device: str, *, every: bool = False) -> Iterator[Engine]:
    """The engine that was asked for, with the device; `every` kind of device may be used (Engine.kinds)."""
    from harness import engines

    with closing(engines.open_engine(place.choice(), device, lambda text: print(text, file=sys.stderr), every)) as made:
        yield made


def find_run(runs_dir: Path, name: str) -> RunFolder:
    from graph.runs import RunFolder

    return RunFolder.find(runs_dir, name)


def close(ending: Ending, command: Working) -> int:
    """Print how the run was left; the exit code."""
    result, run = ending.result, ending.run
    out = sys.stderr if command.as_json else sys.stdout
    again = run.command("resume")
    if command.on_end:
        from graph import hooks

        record = result.model_dump(mode="json")
        if failed := hooks.tell(command.on_end, run, ending.state, ending.message, record):
            print(failed, file=sys.stderr)
    if command.as_json:
        print(result.model_dump_json(indent=1, ensure_ascii=True))
    if ending.state == "finished" and result.status == "failed":
        print(result.error, file=sys.stderr)
        return EXIT_USAGE
    if ending.state == "finished":
        from graph.outputs import best_file
        from harness.report.console import Console
        from harness.report.table import print_result

        print_result(result, Console(file=out, highlight=False))
        print(f"\n{best_file(run, result)}\n{run.folder / 'report.html'}", file=out)
        return 0 if result.improved or result.stop_reason == "speed of light" else EXIT_SAME
    if ending.state == "paused":
        more = " --answer yes|no|@FILE" if ending.message.startswith("waiting for approval") else ""
        print(f"paused: {ending.message}\ngo on with: {again}{more}", file=sys.stderr)
        return EXIT_PAUSED
    print(f"interrupted; what was finished is kept. Go on with: {again}", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(EXIT_INTERRUPTED)  # a node may still be at work in its thread; under sync durability it loses nothing
