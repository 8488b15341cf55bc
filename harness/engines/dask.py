"""A cluster of Dask workers as the place where jobs run: this machine's own, or one whose scheduler runs already.

The scheduler decides who works: a device offers one unit of a resource that is named after its kind, so it does one job at
a time, and whatever builds offers units of another. A timed job names the device where its kernel is warm (harness/cluster/homes.py),
unless all are busy. A job whose worker dies goes to another one; the second death in a row
is taken to be the job's doing. Lost connections are made again and their jobs asked anew: the same question has the same name.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from types import ModuleType
from typing import Any

from distributed import Client, Future, KilledWorker
from distributed.comm.core import CommClosedError

from harness import backends, device
from harness.cluster import ClusterError, DeviceModel, Status, build_resource, code, security
from harness.cluster.homes import Homes
from harness.cluster.leases import LeaseOver, Routes, WorkerLost, WorkerRoute
from harness.cluster.local import Local
from harness.cluster.loop import LoopThread
from harness.cluster.places import own_cores
from harness.cluster.scheduler import FAILURES, configure
from harness.cluster.worker import Cancelled, JobElsewhere, Lacking, answer, content_key, hold
from harness.engines import Cores, Engine, EngineChoice, EngineError, Say
from harness.evaluate import Evaluator
from harness.jobs import Job, JobAnswer
from harness.once import Once
from harness.options import program
from harness.questions import CheckToolchain, ToolchainFacts
from harness.remote import RemoteEvaluator, TookDown
from harness.store import Store, digest
from kernels.catalog import Kernel

JOIN_S = 300.0
"""Seconds until the first worker must have joined a cluster: it imports torch and times a binary against itself."""
SILENT_S = 3.0
"""Seconds of waiting before a person is told what is waited for."""
LOST_S = 900.0
"""Seconds without the scheduler, or without a device that can do a job, after which the run is given up for now, to
be resumed. Longer than a place that was set aside is away (`parked_s` of its Orders, and the minute that it needs to
join)."""
LOOK_S = 1.0
LOST = (CancelledError, CommClosedError, OSError, Cancelled)
"""Exceptions that a future raises whose scheduler or whose connection is gone."""


class Moved(Exception):
    """The worker that a job was to go to is not there any more."""


class Cluster:
    """The connection to a scheduler: who is there, and jobs carried out. Safe for several threads. Close it."""

    def __init__(self, choice: EngineChoice, wanted: str, say: Say) -> None:
        configure()
        logging.getLogger("distributed").setLevel(logging.CRITICAL)  # what a person should know of it we say
        self.choice, self.say, self.lost_s = choice, say, LOST_S
        self.lock = threading.Lock()
        self.contents: dict[str, Future] = {}
        self.used: dict[str, int] = {}
        self.toolchains = Once[JobAnswer]()
        self.began: dict[str, list[str]] = {}
        self.listening: dict[str, tuple[Callable[[str], None], Callable[[str], None]]] = {}
        self.loop = LoopThread()
        self.topic = f"astrolabe-{id(self):x}-{time.time_ns():x}"
        self.aside: dict[str, str] = {}
        self.said: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.seen: list[Status] = []
        self.addresses: dict[str, str] = {}
        """Address of the worker at each place, as last seen."""
        self.homes, self.routes = Homes(), Routes()
        self.building: Counter[str] = Counter()
        """Builds of ours by place."""
        self.others = 0
        """Number of workers of another version, or that are none of ours."""
        self.closed = threading.Event()
        self.local: Local | None = None
        self.client: Client | None = None
        try:
            tls = Path(choice.tls) if choice.tls else None
            if choice.address:
                self.address = security.check_address(choice.address, tls, insecure=choice.insecure)
            else:
                self.local = Local(device.choose(wanted)[0], choice.workers)
                self.address, tls = self.local.address, self.local.tls
            self.security = security.of(tls)
            self._connect(30.0)
            for name, work in (("cluster-says", self._tell), ("cluster-look", self._look)):
                threading.Thread(target=work, name=name, daemon=True).start()
            self.first = self._first(wanted)
        except ClusterError as error:
            self.close()
            raise EngineError(str(error)) from None
        except BaseException:
            self.close()
            raise

    # --- the connection ------------------------------------------------------------------------------------------

    def _connect(self, timeout_s: float) -> None:
        """Raises EngineError where the scheduler does not answer."""
        how = {"security": self.security} if self.security else {}
        try:
            client = Client(
                self.address, timeout=timeout_s, set_as_default=False, name="astrolabe", loop=self.loop.loop, **how
            )  # fmt: skip
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: Tornado's, of a TLS that is cut at its start
            raise EngineError(f"no scheduler answers at {self.address}: {error}") from None

        def tries(dask_scheduler: Any) -> None:
            dask_scheduler.allowed_failures = FAILURES

        client.run_on_scheduler(tries)
        client.subscribe_topic(self.topic, self._heard)
        self.client = client

    def _again(self, lost: Client | None) -> None:
        """A new connection in place of the lost one, once for all threads. Raises EngineError after `lost_s`."""
        with self.lock:
            if self.client is not lost:
                return
            late = time.monotonic() + self.lost_s
            if lost is not None:
                with contextlib.suppress(Exception):  # it is broken: whatever closing it raises, it is gone
                    lost.close(timeout=2)
            self.contents.clear()
            self.routes = Routes()
            if not self.closed.is_set():
                self.say("the connection to the cluster's scheduler is lost; trying again")
            while not self.closed.is_set():
                if self.local is not None and self.local.start_scheduler():
                    self.say("the cluster's scheduler had ended and is started again")
                try:
                    self._connect(10.0)
                    return
                except EngineError as error:
                    if time.monotonic() > late:
                        raise EngineError(f"{error}; what was finished is kept: resume once it runs again") from None
                    time.sleep(LOOK_S)
            raise EngineError("the engine was closed while a question was on its way; what was finished is kept")

    def _heard(self, event: tuple[float, Any]) -> None:
        """What a worker says of a job, in the client's thread, which must not wait: others pass it on."""
        said = event[1]
        listening = self.listening.get(said["job"])
        if "began" in said:
            if listening:
                self.began[said["job"]].append(said["place"])
                self.said.put(partial(listening[1], said["place"]))
        elif listening:
            self.said.put(partial(listening[0], f"{said['said']} ({said['place']})"))

    def _tell(self) -> None:
        while (one := self.said.get()) is not None:
            one()

    # --- who is there --------------------------------------------------------------------------------------------

    def _look(self) -> None:
        """Keeps `seen`: what all workers said of themselves last. As it was while the scheduler cannot be asked."""
        while not self.closed.wait(LOOK_S / 4 if not self.seen else LOOK_S):
            client = self.client
            if client is None or client.status != "running":
                continue
            try:
                workers = client.scheduler_info()["workers"]
            except (OSError, TimeoutError, RuntimeError, CancelledError):  # the connection is going; its jobs say so
                continue
            metrics = {address: worker["metrics"].get("astrolabe") or {} for address, worker in workers.items()}
            ours = {at: Status.model_validate(one) for at, one in metrics.items() if one.get("code") == code()}
            found = list(ours.values())
            self.addresses = {status.place: address for address, status in ours.items()}
            self.others = len(metrics) - len(found)
            for status in found:
                if status.state == "set aside" and self.aside.get(status.place) != status.reason:
                    self.aside[status.place] = status.reason
                    self.say(f"{status.place} is set aside: {status.reason}")
                elif status.state == "ready":
                    self.aside.pop(status.place, None)
            self.seen = sorted(found, key=lambda status: status.place)

    def models(self) -> dict[str, DeviceModel]:
        """Kinds of devices that are ready, by their resource."""
        found: dict[str, DeviceModel] = {}
        for status in self.seen:
            if status.state == "ready" and (model := status.model):
                least = min(model.memory_bytes, found.get(model.resource, model).memory_bytes)
                found[model.resource] = DeviceModel(facts=model.facts, memory_bytes=least)
        return found

    def _first(self, wanted: str) -> list[DeviceModel]:
        """The models that jobs may go to, GPUs before CPUs and never both. Raises EngineError where none comes."""
        began = time.monotonic()
        late, told = began + JOIN_S, False
        while True:
            found = [m for m in self.models().values() if wanted in ("auto", m.facts.device)]
            fitting = [m for m in found if self.choice.model.lower() in m.resource.lower()]
            every = self.seen
            joining = self.local is not None and sum(s.kind == "device" for s in every) < self.local.devices
            if fitting and not joining:
                break
            if joining and self.local is not None:
                self.local.check()
            if time.monotonic() > late and fitting:
                self.say(f"not all devices of this machine have joined, so without them{self._last_words()}")
                break
            if time.monotonic() > late or (not joining and not fitting and self._settled(every)):
                raise EngineError(self._nobody(wanted, every, found))
            if not told and time.monotonic() > began + SILENT_S:
                what = "its devices" if self.local else f"a device; `{program()} worker ADDRESS` lends one"
                self.say(f"waiting up to {JOIN_S:.0f} s for the cluster at {self.address} to have {what}")
                told = True
            time.sleep(0.1)
        kinds = sorted({m.facts.device for m in fitting}, reverse=True)  # cuda before cpu
        fitting = [m for m in fitting if m.facts.device == kinds[0]]
        return sorted(fitting, key=lambda model: model.resource)

    @staticmethod
    def _settled(every: list[Status]) -> bool:
        """Whether waiting would change nothing: all devices that are there are set aside. Who builds joins long before them."""
        states = [status.state for status in every if status.kind == "device"]
        return bool(states) and all(state == "set aside" for state in states)

    def _last_words(self) -> str:
        """The last lines that a cluster of our own wrote, whose log goes with it."""
        return f" (its log ends: {self.local.last_words(3)})" if self.local else ""

    def _nobody(self, wanted: str, every: list[Status], found: list[DeviceModel]) -> str:
        said = [f"{status.place}: {status.reason}" for status in every if status.state == "set aside"]
        if self.others:
            said.append(f"{self.others} workers run another version of Astrolabe than this one")
        if found:
            said.append(f"there is {', '.join(sorted(model.facts.name for model in found))}")
        what = self.choice.model or (wanted if wanted != "auto" else "any kind")
        return f"the cluster at {self.address} has no device of {what} that is ready{self._last_words()}" + (
            f": {'; '.join(said)}" if said else f"; `{program()} worker ADDRESS` lends one"
        )

    def find_ready(self, model: DeviceModel) -> list[str]:
        """Places of the devices of that model that are ready."""
        ready = [(one.place, one.model) for one in self.seen if one.state == "ready"]
        return [place for place, found in ready if found is not None and found.resource == model.resource]

    def close(self) -> None:
        """Safe to call twice."""
        self.closed.set()
        self.said.put(None)
        if self.client is not None:
            with contextlib.suppress(OSError, TimeoutError):
                self.client.close(timeout=5)
            self.client = None
            self.routes = Routes()
        if self.local is not None:
            self.local.close()
            self.local = None
        self.loop.close()

    # --- jobs ----------------------------------------------------------------------------------------------------

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
                        self._again(client)
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
                        self._again(client)
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
