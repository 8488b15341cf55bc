"""The event loop of a client."""

from __future__ import annotations

import asyncio
import threading

from tornado.ioloop import IOLoop


class LoopThread:
    """An event loop in a thread of its own, for one client after another: Dask's own does not survive one that failed."""

    def __init__(self) -> None:
        ready = threading.Event()
        self.thread = threading.Thread(target=asyncio.run, args=(self._run(ready),), name="cluster-loop", daemon=True)
        self.thread.start()
        ready.wait()

    async def _run(self, ready: threading.Event) -> None:
        self.loop, self.stop = IOLoop.current(), asyncio.Event()
        ready.set()
        await self.stop.wait()

    def close(self) -> None:
        """Safe to call twice."""
        if self.thread.is_alive():
            self.loop.add_callback(self.stop.set)
            self.thread.join(10)
