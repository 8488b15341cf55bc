"""Processes that wait: in their box, with the device at hand, and nothing of a candidate. The next one that is asked for.

On a GPU CUDA's start takes 0.3 to 0.5 s of each process, 2 s beside three others, and a verdict asks for several. They are begun beside
work that is not timed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, wait
from contextlib import contextmanager
from threading import Lock, Semaphore, Thread
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    from harness.farside.sandbox import ProcessLimits
    from harness.processes.worker import Worker

BEGUN_AT_ONCE, FIRST = 2, 4
_every: WeakSet[Spares] = WeakSet()


class Spares:
    """Of one kind. Close it."""

    def __init__(self, make: Callable[[ProcessLimits], Worker], wanted: int) -> None:
        """`make` begins one; `wanted`: how many are kept from the first one on that is asked for."""
        self.make, self.wanted, self.resting = make, wanted, 0
        self.begun: deque[tuple[ProcessLimits, Future[Worker]]] = deque()
        self.at_once = Semaphore(BEGUN_AT_ONCE)
        self.last: ProcessLimits | None = None
        self.lock = Lock()
        _every.add(self)

    def prepare(self, limits: ProcessLimits) -> None:
        """Begin the first of these limits, beside the imports of whoever will soon ask for one; the others when it does."""
        with self.lock:
            self.last = limits
            self._begin(FIRST)

    def take(self, limits: ProcessLimits, *, more: bool = True) -> Worker | None:
        """One of these limits, to be closed by whoever takes it, and another begun in its place where there will be `more` to take; None where
        none is kept, or the one that was has failed."""
        if not self.wanted:
            return None
        with self.lock:
            if more:
                self.last = limits
                self._begin()
            found = next((one for one in self.begun if one[0] == limits), None)
            if found is None:
                return None
            self.begun.remove(found)
            if more:
                self._begin()
        try:
            worker = found[1].result()
        except Exception:  # noqa: BLE001, whoever asked starts its own, and finds out why
            return None
        if worker.alive:
            return worker
        worker.close()
        return None

    def _begin(self, most: int = 1 << 30) -> None:
        """As many as are wanted of the limits that were asked for last, at most so many. The caller has the lock."""
        while self.last is not None and not self.resting and len(self.begun) < min(self.wanted, most):
            future: Future[Worker] = Future()
            self.begun.append((self.last, future))
            # No pool's thread: this process would wait for it at its end.
            Thread(target=self._make, args=(self.last, future), name="spares", daemon=True).start()

    def _make(self, limits: ProcessLimits, future: Future[Worker]) -> None:
        with self.at_once:
            try:
                if not self.wanted:
                    raise RuntimeError("closed")
                future.set_result(self.make(limits))
            except BaseException as error:  # noqa: BLE001, whoever takes it starts its own, and finds out why
                future.set_exception(error)

    def rest(self, more: int) -> None:
        """Begin none from here on (1), or again (-1) when the next one is taken: behind the last measurement none is."""
        with self.lock:
            self.resting += more

    def settle(self) -> None:
        """Wait until none is being begun: nothing may be timed beside that."""
        wait([future for _, future in self.begun])

    def close(self) -> None:
        """End those that wait. Safe to call twice."""
        with self.lock:
            self.wanted = 0
            begun, self.begun = self.begun, deque()
        made = [future.result() for _, future in begun if future.exception() is None]
        for worker in made:
            worker.kill()
        for worker in made:
            worker.close()


@contextmanager
def resting() -> Iterator[None]:
    """Begin none meanwhile: what is timed would wait for each."""
    every = list(_every)
    for one in every:
        one.rest(1)
    try:
        yield
    finally:
        for one in every:
            one.rest(-1)


def settle() -> None:
    """Wait until none is being begun."""
    for one in list(_every):
        one.settle()
