"""What a signal does to a process that works on a run: the first ends the session in order, the second at once."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from graph.runs import RunFolder

if TYPE_CHECKING:
    from graph.session import Ending, Session

GRACE_S = 2.0
"""Seconds after Ctrl-C in which the node in flight may finish before the process ends. Nothing that it uses is killed
first: the verdict about a killed worker would be wrong, and it would be stored."""


def interruptible(body: Callable[[], Ending], session: Session) -> Ending:
    """Runs `body` in a thread. The first SIGINT or SIGTERM stops the session, the second ends the process at once.

    Where the node in flight has not noticed within GRACE_S the process ends by itself: under `sync` durability that
    loses no more than a kill would. Raises what the body raised.
    """
    outcome: list[Ending | BaseException] = []

    def run() -> None:
        try:
            outcome.append(body())
        except BaseException as error:  # noqa: BLE001  handed to the caller's thread
            outcome.append(error)

    asked = 0

    def on_signal(_number: int, _frame: object) -> None:
        nonlocal asked
        asked += 1
        if asked > 1:
            _end_now(session.run)

    main = threading.current_thread() is threading.main_thread()
    before = {s: signal.signal(s, on_signal) for s in (signal.SIGINT, signal.SIGTERM)} if main else {}
    thread = threading.Thread(target=run, name="astrolabe", daemon=True)
    deadline = None
    try:
        thread.start()
        while thread.is_alive():
            thread.join(0.1)
            if session.stop is not None and session.stop.is_set():
                asked = max(asked, 1)
            if asked and deadline is None:
                deadline = time.monotonic() + (0 if session.asking else GRACE_S)
                session.control.request_drain()
            if deadline is not None and time.monotonic() > deadline and thread.is_alive():
                session.graph = None  # its thread may be using it
                return session.ending("interrupted")  # the thread is a daemon: it ends with the process
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if isinstance(outcome[0], BaseException):
        raise outcome[0]
    return outcome[0]


def _end_now(run: RunFolder) -> None:
    if os.isatty(1):
        os.write(1, b"\x1b[?25h\n")  # a live display hides the cursor
    said = f"interrupted; what was finished is kept. Go on with: {run.command('resume')}\n"
    os.write(2, said.encode(errors="replace"))
    os._exit(130)
