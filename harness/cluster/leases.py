"""A place that is lent to a client for a while: questions go to its worker itself, in 4 ms in place of the scheduler's 15.

A lease is a job like any other, so the scheduler still decides who has a device, and one at a time. It ends where nothing has been asked
for IDLE_S, and after LEND_S at the latest, so that others have their turn. Where a worker cannot be reached, behind a tunnel say,
everything goes through the scheduler.
"""

from __future__ import annotations

import asyncio
import pickle
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from harness.jobs import Job, JobAnswer

IDLE_S, LEND_S = 2.0, 30.0
REACH_S = 3.0
"""Seconds for a first connection to a worker."""
LOOK_S = 1.0


class LeaseOver(Exception):
    """The place is lent no more; the question was not begun."""


class WorkerLost(Exception):
    """The connection to the worker broke while it was at the question."""


class Lease:
    """The worker's end: what was asked and not begun. Safe for several threads."""

    def __init__(self, name: str) -> None:
        self.name, self.over = name, False
        self.waiting: deque[Callable[[], None]] = deque()
        self.changed = threading.Condition()

    def put(self, work: Callable[[], None]) -> bool:
        """Whether it will be done; not where the lease is over."""
        with self.changed:
            if not self.over:
                self.waiting.append(work)
                self.changed.notify_all()
            return not self.over

    def next(self, patience_s: float) -> Callable[[], None] | None:
        """What is to be done next; None where nothing came in so many seconds, and then the lease is over."""
        with self.changed:
            self.changed.wait_for(lambda: self.waiting or self.over, patience_s)
            if self.waiting:
                return self.waiting.popleft()
            self.over = True
            return None

    def end(self) -> None:
        """Once what was asked is done."""
        with self.changed:
            self.over = True
            self.changed.notify_all()


@dataclass
class WorkerRoute:
    """The client's way to one worker."""

    name: str = ""
    """The lease that it has there."""
    future: Any = None
    resource: str = ""
    sent: set[str] = field(default_factory=set)
    """Hashes of contents that are there."""


class Routes:
    """The client's end, for one connection to a scheduler. Safe for several threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[str, WorkerRoute | None] = {}
        """By the worker's address; None where it cannot be reached."""

    def find(self, client: Any, address: str) -> WorkerRoute | None:
        """The route to that worker, tried once."""
        with self.lock:
            if address in self.known:
                return self.known[address]

        async def reach() -> None:
            client.rpc.reuse(address, await client.rpc.connect(address, timeout=REACH_S))

        try:
            asyncio.run_coroutine_threadsafe(reach(), client.loop.asyncio_loop).result(2 * REACH_S)
            route: WorkerRoute | None = WorkerRoute()
        except (OSError, TimeoutError, RuntimeError, CancelledError):
            route = None
        with self.lock:
            return self.known.setdefault(address, route)

    def ask(
        self,
        client: Any,
        address: str,
        route: WorkerRoute,
        job: Job,
        topic: str,
        contents: dict[str, bytes],
        gone: Callable[[], bool],
    ) -> JobAnswer:
        """The worker's answer. Raises what it raised, LeaseOver, and WorkerLost where the connection breaks or `gone` says so."""
        try:
            new = {name: contents[name] for name in job.hashes - route.sent}
            text = job.model_dump_json()
            call = client.rpc(address).astrolabe_ask(lease=route.name, topic=topic, text=text, contents=new)
            found = pickle.loads(_wait(asyncio.run_coroutine_threadsafe(call, client.loop.asyncio_loop), address, gone))
            if isinstance(found, BaseException):
                raise found
        except BaseException:
            self._forget(route)
            raise
        route.sent |= job.hashes
        return found

    def take(self, route: WorkerRoute) -> WorkerRoute:
        """The lease of that route as it was, which is the caller's to end; the route has none any more."""
        with self.lock:
            had = WorkerRoute(route.name, route.future, route.resource)
            route.name, route.future = "", None
            return had

    def _forget(self, route: WorkerRoute) -> None:
        """After a failure: the lease is given back, and what the worker holds is not known."""
        route.sent.clear()
        if (future := self.take(route).future) is not None:
            future.cancel()

    def give_back(self, client: Any, resource: str) -> None:
        """End the leases of such places once what they are at is done: somebody waits for one."""
        with self.lock:
            lent = [
                (at, one) for at, one in self.known.items() if one is not None and one.name and one.resource == resource
            ]
        for address, route in lent:
            name = self.take(route).name
            call = client.rpc(address).astrolabe_end(lease=name)
            asyncio.run_coroutine_threadsafe(_quietly(call), client.loop.asyncio_loop)


def _wait(answer: Future[bytes], address: str, gone: Callable[[], bool]) -> bytes:
    """Raises WorkerLost."""
    while True:
        try:
            return answer.result(LOOK_S)
        except TimeoutError as error:
            if answer.done() or gone():
                answer.cancel()
                raise WorkerLost(address) from error
        except (OSError, RuntimeError, CancelledError) as error:
            raise WorkerLost(address) from error


async def _quietly(call: Any) -> None:
    with suppress(OSError, RuntimeError):  # the worker is gone, and the lease with it
        await call
