"""One process a machine: starts a worker for each place, and again where one ended, until it is told to end itself."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from harness.cluster import ROOT
from harness.cluster.places import ClusterPlace
from harness.cluster.worker import Orders
from harness.farside import sandbox

AGAIN_S, AGAIN_AT_MOST_S = 0.5, 30.0
"""Seconds until a worker that ended is started again: the first time and at most; doubled each time that it ends within
STEADY_S."""
STEADY_S = 60.0
LEAVE_S = 5.0
KEPT = ("LD_LIBRARY_PATH", "VIRTUAL_ENV", "CXX", "CC", "TZ", "XDG_CACHE_HOME", "ASTROLABE_CACHE")
"""Variables of the user's environment that a worker gets beside a sandbox's: where tools are. Nothing else, so no key
of a model's server."""
PREFIXES = ("DASK_", "ASTROLABE_CLUSTER_", "ASTROLABE_LOCKS")


def environment(place: ClusterPlace | None = None) -> dict[str, str]:
    """Environment variables of a scheduler or a worker."""
    made = sandbox.clean_environment(os.environ.get("HOME", "/"))
    made |= {name: os.environ[name] for name in KEPT if name in os.environ}
    made |= {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    made |= {"HOME": os.environ.get("HOME", "/"), "TMPDIR": tempfile.gettempdir()}
    # Where packages are, on a machine that has them in modules; what is boxed starts with -I and reads none of it.
    given = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
    made["PYTHONPATH"] = os.pathsep.join([str(ROOT), *map(os.path.abspath, given)])  # they work in folders of their own
    made.pop("CUDA_CACHE_PATH", None)
    if place is not None:
        made |= {"CUDA_VISIBLE_DEVICES": place.gpu, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        made |= {"OMP_NUM_THREADS": str(len(place.cores))}
    return made


@dataclass
class Child:
    place: ClusterPlace
    folder: Path
    process: subprocess.Popen | None = None
    began: float = 0.0
    again_at: float = 0.0
    wait_s: float = AGAIN_S
    ended: list[int] = field(default_factory=list)


class Supervisor:
    def __init__(
        self,
        orders: Callable[[ClusterPlace, Path], Orders],
        places: list[ClusterPlace],
        folder: Path,
        say: Callable[[str], None],
    ) -> None:
        """`orders` makes a worker's; `folder` is removed at the end."""
        self.orders, self.folder, self.say = orders, folder, say
        self.children = [Child(place, folder / f"place-{at}") for at, place in enumerate(places)]
        self.stopping, self.leave_s = False, LEAVE_S

    def serve(self, *, with_parent: bool) -> None:
        """Until SIGTERM, SIGINT or, `with_parent`, standard input ends: it does when the parent is gone, however it went."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)
        try:
            while not self.stopping:
                for child in self.children:
                    self._keep(child)
                if with_parent and select.select([sys.stdin], [], [], 0.2)[0] and not os.read(0, 1024):
                    self.leave_s = 0.0  # nobody is there to whom a job could be given back
                    break
                if not with_parent:
                    time.sleep(0.2)
        finally:
            self._end()

    def _stop(self, _number: int, _frame: object) -> None:
        self.stopping = True

    def _keep(self, child: Child) -> None:
        clock = time.monotonic()
        if child.process is not None:
            code = child.process.poll()
            if code is None:
                return
            if child.began < clock - STEADY_S:
                child.wait_s = AGAIN_S
            child.process, child.again_at = None, clock + child.wait_s
            self.say(f"{child.place.name}: its worker ended ({_how(code)}); it is started again")
            child.wait_s = min(2 * child.wait_s, AGAIN_AT_MOST_S)
        if clock >= child.again_at:
            self._start(child)

    def _start(self, child: Child) -> None:
        shutil.rmtree(child.folder, ignore_errors=True)  # what a killed worker left
        child.folder.mkdir(parents=True)
        orders = self.orders(child.place, child.folder)
        child.began = time.monotonic()
        command = [sys.executable, "-m", "harness.cluster", "worker", str(os.getpid()), orders.model_dump_json()]
        child.process = subprocess.Popen(
            command, cwd=child.folder, env=environment(child.place), stdin=subprocess.DEVNULL, start_new_session=True
        )

    def _end(self) -> None:
        alive = [child.process for child in self.children if child.process is not None]
        for process in alive:
            process.terminate()
        late = time.monotonic() + self.leave_s
        for process in alive:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(0.0, late - time.monotonic()))
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)


def _how(code: int) -> str:
    return f"by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
