"""A cluster of Dask workers as the place where jobs run: this machine's own, or one whose scheduler runs already.

The scheduler decides who works: a device offers one unit of a resource that is named after its kind, so it does one job at
a time, and whatever builds offers units of another. A timed job names the device where its kernel is warm (harness/cluster/homes.py),
unless all are busy. A job whose worker dies goes to another one; the second death in a row
is taken to be the job's doing. Lost connections are made again and their jobs asked anew: the same question has the same name.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError
from types import ModuleType
from typing import Any

from distributed import Client, Future, KilledWorker
from distributed.comm.core import CommClosedError

from harness import backends
from harness.cluster import DeviceModel, Status, build_resource
from harness.cluster.homes import Homes
from harness.cluster.leases import LeaseOver, Routes, WorkerLost, WorkerRoute
from harness.cluster.places import own_cores
from harness.cluster.scheduler import FAILURES
from harness.cluster.worker import Cancelled, JobElsewhere, Lacking, answer, content_key, hold
from harness.engines import Cores, Engine, EngineChoice, EngineError, Say
from harness.engines._connection import LOOK_S, ClusterConnection
from harness.evaluate import Evaluator
from harness.jobs import Job, JobAnswer
from harness.once import Once
from harness.questions import CheckToolchain, ToolchainFacts
from harness.remote import RemoteEvaluator, TookDown
from harness.store import Store, digest
from kernels.catalog import Kernel

LOST = (CancelledError, CommClosedError, OSError, Cancelled)
"""Exceptions that a future raises whose scheduler or whose connection is gone."""


class Moved(Exception):
    """The worker that a job was to go to is not there any more."""


class Cluster(ClusterConnection):
    """Jobs carried out. Safe for several threads. Close it."""

    def __init__(self, choice: EngineChoice, wanted: str, say: Say) -> None:
        self.contents: dict[str, Future] = {}
        self.toolchains = Once[JobAnswer]()
        self.homes, self.routes = Homes(), Routes()
        self.building: Counter[str] = Counter()
        """Builds of ours by place."""
        super().__init__(choice, wanted, say)

    def forget(self) -> None:
        self.contents.clear()
        self.routes = Routes()

    def _resource(self, job: Job) -> str:
        """Builds for a GPU go to whoever offers to build; for a CPU to a device of the kind that they are for."""
        if not job.question.timed and job.facts.device == "cuda":
            return build_resource()
        return DeviceModel(facts=job.facts, memory_bytes=job.memory_bytes).resource

    def ask(
        self, job: Job, contents: dict[str, bytes], say: Callable[[str], None], began: Callable[[str], None]
    ) -> JobAnswer:
        if not isinstance(job.question, CheckToolchain):
            return self._carry_out(job, contents, say, began)
        key = digest(job.question.backend, job.facts.model_dump_json())  # whoever asks: once a connection
        return self.toolchains.get(key, lambda: self._carry_out(job, contents, say, began))

    def _carry_out(
        self, job: Job, contents: dict[str, bytes], say: Callable[[str], None], began: Callable[[str], None]
    ) -> JobAnswer:
        name, tries, returned = job.name, 0, 0
        self.listening[name] = (say, began)
        at = self.began[name] = list[str]()  # ours, also where another thread asks the same and ends first
        try:
            while True:
                client, place = self.client, self._place(job)
                address = self.addresses.get(place, "")
                try:
                    if (route := self._route(client, job, address)) is not None:
                        at.append(place)
                        began(place)
                        gone = lambda: address not in self.addresses.values()  # noqa: B023, E731
                        return self.routes.ask(client, address, route, job, self.topic, contents, gone)
                    return self._awaited(self._submit(client, job, contents, tries, address), job, address)
                except (KilledWorker, Moved):
                    pass
                except LeaseOver:
                    returned += 1
                except WorkerLost:
                    time.sleep(LOOK_S)
                    if not self._is_alive(client):  # the scheduler is gone, and workers go with it
                        self.connect_again(client)
                        returned = len(at)
                except Lacking as names:  # the worker that held them is gone
                    returned += 1
                    self.release(set(names.args))
                except JobElsewhere as reason:
                    returned += 1
                    self.say(f"{reason.args[0]} gave a job back: {reason.args[1]}")
                    time.sleep(LOOK_S)
                except LOST:
                    if not self._is_alive(client):
                        self.connect_again(client)
                    time.sleep(LOOK_S)
                    returned = len(at)  # whoever was at it may be so still
                finally:
                    self._leave(job, place)
                tries += 1
                # Dask counts a worker's death for all that waited there, and not over a job that was given back: we count
                # those that had begun with it and have not said how it ended.
                if (deaths := len(at) - returned) > FAILURES:
                    where = ", ".join(dict.fromkeys(at))
                    raise TookDown(f"its worker died {deaths} times while it was at this ({where})")
        finally:
            self.listening.pop(name, None)
            self.began.pop(name, None)

    @staticmethod
    def _is_alive(client: Client | None) -> bool:
        return client is not None and client.status == "running"

    def _place(self, job: Job) -> str:
        """Who is to do it, "" for any. `_leave` it."""
        able = [s.place for s in self.seen if self._can(s, job) and s.place in self.addresses]
        if job.question.timed:
            return self.homes.take(job.asker, able)
        if self._resource(job) != build_resource() or not able:
            return ""
        with self.lock:
            place = min(able, key=lambda place: self.building[place])
            self.building[place] += 1
            return place

    def _leave(self, job: Job, place: str) -> None:
        if job.question.timed:
            self.homes.give(place)
        elif place:
            with self.lock:
                self.building[place] -= 1

    def _route(self, client: Client | None, job: Job, address: str) -> WorkerRoute | None:
        """The way to that worker, whose device is lent to us; None where the scheduler is to be asked."""
        if not address or not self._is_alive(client):
            return None
        route = self.routes.find(client, address)
        if route is not None and job.question.timed and not (route.name and route.future.status == "pending"):
            self._lend(client, job, address, route)
        return route

    def _lend(self, client: Client | None, job: Job, address: str, route: WorkerRoute) -> None:
        """Ask the scheduler for the device. Raises as `_awaited` does, and LeaseOver where it was not lent."""
        assert client is not None
        name, lent = f"lease-{secrets.token_hex(8)}", threading.Event()
        self.began[name] = []
        self.listening[name] = (lambda _text: None, lambda _place: lent.set())
        try:
            resource = self._resource(job)
            future = client.submit(
                hold, name, self.topic, key=name, resources={resource: 1}, pure=False, retries=0, workers=[address]
            )
            self._wait(future, lent, job, address)
            if future.status != "pending":
                raise LeaseOver(name)
            route.name, route.future, route.resource = name, future, resource
        finally:
            self.listening.pop(name, None)
            self.began.pop(name, None)

    def _submit(self, client: Client | None, job: Job, contents: dict[str, bytes], tries: int, address: str) -> Future:
        """Raises what LOST names where there is no connection."""
        if client is None or client.status != "running":
            raise CommClosedError("not connected")
        self.routes.give_back(client, self._resource(job))
        self._send(client, {name: contents[name] for name in job.hashes})
        key = f"{job.name}-{tries}" if tries else job.name
        return client.submit(
            answer, job.model_dump_json(), self.topic, key=key, resources={self._resource(job): 1}, pure=False, retries=0,
            workers=[address] if address else None,
        )  # fmt: skip

    def _send(self, client: Client, contents: dict[str, bytes]) -> None:
        """What the cluster does not hold yet goes to one worker; the others have it from there."""
        with self.lock:
            held = {name for name, future in self.contents.items() if future.status == "finished"}
        new = {content_key(name): data for name, data in contents.items() if name not in held}
        if new:  # twice by two threads at once does no harm: the same name is the same data
            sent = client.scatter(new, hash=False)
            with self.lock:
                self.contents |= {key.removeprefix("content-"): future for key, future in sent.items()}

    def _awaited(self, future: Future, job: Job, address: str) -> JobAnswer:
        """Raises what the job raised, and as `_wait` does."""
        self._wait(future, threading.Event(), job, address)
        return future.result()

    def _wait(self, future: Future, done: threading.Event, job: Job, address: str) -> None:
        """Until `done`, or the future is. Raises Moved where the worker of that address is gone, EngineError where nobody has been there to
        do it for `lost_s`."""
        late: float | None = None
        # Not `result(timeout=...)`, which a cancelled future ends in an UnboundLocalError of Dask's.
        future.add_done_callback(lambda _future: done.set())
        while not done.wait(LOOK_S) and future.status == "pending":
            if future.client.status == "closed":
                raise CommClosedError("the client was closed")
            if address and address not in self.addresses.values():
                future.cancel()
                raise Moved(address)
            if any(self._can(status, job) for status in self.seen):
                late = None
            elif late is None:
                late = time.monotonic() + self.lost_s
                self.say("no worker of the cluster can do this now; waiting for one")
            elif time.monotonic() > late:
                future.cancel()
                raise EngineError(
                    f"no worker of the cluster at {self.address} could do a job for {self.lost_s:.0f} s; what was "
                    "finished is kept: resume once there is one"
                )
        if future.status in ("cancelled", "lost"):
            raise CancelledError(job.name)

    def _can(self, status: Status, job: Job) -> bool:
        if status.state != "ready":
            return False
        if self._resource(job) == build_resource():
            return status.kind == "builder"
        return status.model is not None and status.model.resource == self._resource(job)

    def release(self, names: set[str], asker: str = "") -> None:
        """What that asker's questions needed, where it has no more of them."""
        self.homes.leave(asker)
        with self.lock:
            for name in names:
                self.contents.pop(name, None)


class Devices:
    """The engine: those of a cluster's devices that are of one model, and the transport of their Evaluators."""

    here = False

    def __init__(self, cluster: Cluster, model: DeviceModel) -> None:
        self.cluster, self.model, self.device = cluster, model, model.facts.device
        self.memory_bytes: int | None = model.memory_bytes
        self.why = f"{len(cluster.find_ready(model))} x {model.facts.name} in the cluster at {cluster.address}"
        self.ask, self.release, self.close = cluster.ask, cluster.release, cluster.close

    @property
    def say(self) -> Say:
        return self.cluster.say

    @say.setter
    def say(self, say: Say) -> None:
        self.cluster.say = say

    def kinds(self) -> dict[str, Engine]:
        models = self.cluster.first
        names = [model.facts.name for model in models]
        twice = len(set(names)) < len(names)
        return {model.resource if twice else model.facts.name: Devices(self.cluster, model) for model in models}

    def missing(self, backend: ModuleType) -> str:
        question = CheckToolchain(backend=backends.name_of(backend))
        job = Job(question=question, asker="", **dict(self.model), session=None)
        told = self.ask(job, {}, lambda _text: None, lambda _place: None)
        return ToolchainFacts.model_validate_json(told.record).missing

    def evaluator(self, kernel: Kernel, store: Store, **settings: Any) -> Evaluator:
        model = self.model
        return RemoteEvaluator(self, model.facts, model.memory_bytes, kernel, self.device, store, **settings)

    def cores(self) -> Cores:
        every = tuple(own_cores())
        if self.cluster.local is None or not self.cluster.local.builders:
            return Cores(own=every, spare=())
        return Cores(own=self.cluster.local.builders, spare=self.cluster.local.builders)

    def width(self) -> int:
        return max(1, len(self.cluster.find_ready(self.model)))

    def idle(self) -> int:
        return sum(not self.cluster.homes.busy[place] for place in self.cluster.find_ready(self.model))

    def lines(self) -> list[tuple[str, str]]:
        said = lambda one: f"set aside: {one.reason}" if one.state == "set aside" else one.doing or "idle"  # noqa: E731
        return [(one.place, said(one)) for one in self.cluster.seen]


def open_engine(choice: EngineChoice, wanted: str, say: Say, every: bool) -> Devices:
    """Raises EngineError where there is no cluster or no fitting device, DeviceError where this machine lacks the one wanted."""
    cluster = Cluster(choice, wanted, say)
    if len(cluster.first) > 1 and not every:
        names = ", ".join(model.resource for model in cluster.first)
        cluster.close()
        raise EngineError(f"the cluster has devices of several kinds ({names}): --device-model picks one")
    return Devices(cluster, cluster.first[0])
