"""A campaign's next problems, prepared beside the timing of those before them, on cores on which nothing is timed."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from harness.engines import Cores

CORES_OF_A_PROBLEM = 2
"""Cores that preparing one problem uses: drawing its inputs and torch.export are hardly parallel."""
CORES_AT_MOST = 8
"""Those that it may use where others leave them idle: with two, a problem of several GB took minutes, and its turn waited for it."""
CORES_OF_A_DEVICE = 16
"""Cores for each GPU of a machine: as many problems begin at once as it has such shares."""
THREADS_OF_A_DEVICE = 2
"""Problems prepared side by side for each that is worked on, where several are: one takes less than judging it does, and twenty that began with
a campaign of four GPUs kept the first four waiting."""
MOST_AHEAD = 6
"""Problems prepared for each that is worked on: what one takes varies a hundredfold."""


class Ahead:
    """Prepares the problems that wait, in their order, no more than so many ahead, on cores of its threads' own. Close it."""

    def __init__(
        self, prepare: Callable[[Path], None], waiting: Sequence[Path], shares: Sequence[set[int]], most: int
    ) -> None:
        """`prepare` keeps what it finds where the problem's run will look for it; what it raises ends the thread that asked.

        `shares`: each thread's cores; `most`: problems ahead.
        """
        self.prepare, self.waiting = prepare, deque(waiting)
        self.lock, self.room, self.closed = threading.Lock(), threading.Semaphore(most), threading.Event()
        for own in shares:
            threading.Thread(target=self._work, args=(own,), name="ahead", daemon=True).start()

    def begins(self, path: Path) -> None:
        """That problem is worked on now: it need not be prepared, or there is room for another."""
        with self.lock:
            if path in self.waiting:
                self.waiting.remove(path)
                return
        self.room.release()

    def _work(self, cores: set[int]) -> None:
        os.sched_setaffinity(0, cores)  # of this thread, and of the processes that it starts
        while self.waiting and not self.closed.is_set():
            if not self.room.acquire(timeout=0.5):
                continue
            with self.lock:
                if not self.waiting:
                    return
                path = self.waiting.popleft()
            self.prepare(path)

    def close(self) -> None:
        """What is being prepared goes on for now, and ends with this process: who interrupts a campaign waits for nothing."""
        self.closed.set()


def while_timing(prepare: Callable[[Path], None], waiting: Sequence[Path], spare: Sequence[int], at_once: int) -> Ahead:
    """On cores on which nothing is timed, with as many threads as there are cores for: else 20 would start 40 each."""
    most = MOST_AHEAD * at_once
    count = min(len(spare) // CORES_OF_A_PROBLEM or len(spare), most, max(MOST_AHEAD, THREADS_OF_A_DEVICE * at_once))
    step = max(CORES_OF_A_PROBLEM, len(spare) // count)
    shares = [{spare[(number * step + at) % len(spare)] for at in range(CORES_AT_MOST)} for number in range(count)]
    return Ahead(prepare, waiting, shares, most)


def begin_first(read: Callable[[Path], None], waiting: Sequence[Path]) -> None:
    """Begin to read the first problems, while the engine is being opened; whoever works on one waits for it where it is not done.

    `read` keeps what it finds in this process.
    """
    cores = sorted(os.sched_getaffinity(0))
    count = min(len(waiting), max(1, len(cores) // CORES_OF_A_DEVICE))
    Ahead(read, waiting[:count], [set(cores[number::count]) for number in range(count)], count)


@contextmanager
def apart(cores: Cores) -> Iterator[None]:
    """This thread, and what it starts from now on, on the cores that the engine leaves to it."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, cores.own)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
