"""The connection of the engine `dask` to its scheduler, and who is there: near side, one a run."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from distributed import Client

from harness import device
from harness.cluster import ClusterError, DeviceModel, Status, code, security, software
from harness.cluster.local import Local
from harness.cluster.loop import LoopThread
from harness.cluster.scheduler import FAILURES, configure
from harness.engines import EngineChoice, EngineError, Say
from harness.options import program

JOIN_S = 300.0
"""Seconds until the first worker must have joined a cluster: it imports torch and times a binary against itself."""
SILENT_S = 3.0
"""Seconds of waiting before a person is told what is waited for."""
LOST_S = 900.0
"""Seconds without the scheduler, or without a device that can do a job, after which the run is given up for now, to
be resumed. Longer than a place that was set aside is away (`parked_s` of its Orders, and the minute that it needs to
join)."""
LOOK_S = 1.0


def silence_dask() -> None:
    """What a person should know of a connection we say; Dask's own loggers have levels of their own each, and print tracebacks."""
    for name in ("distributed", *logging.root.manager.loggerDict):
        if name.partition(".")[0] == "distributed":
            logging.getLogger(name).setLevel(logging.CRITICAL)


class ClusterConnection:
    """To a scheduler. Safe for several threads. Close it."""

    def __init__(self, choice: EngineChoice, wanted: str, say: Say) -> None:
        configure()
        silence_dask()
        self.choice, self.say, self.lost_s = choice, say, LOST_S
        self.lock = threading.Lock()
        self.began: dict[str, list[str]] = {}
        self.listening: dict[str, tuple[Callable[[str], None], Callable[[str], None]]] = {}
        self.loop = LoopThread()
        self.topic = f"astrolabe-{id(self):x}-{time.time_ns():x}"
        self.aside: dict[str, str] = {}
        self.said: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self.seen: list[Status] = []
        self.addresses: dict[str, str] = {}
        """Address of the worker at each place, as last seen."""
        self.others = 0
        """Number of workers of another version, or that are none of ours."""
        self.other_software: set[str] = set()
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

    def _connect(self, timeout_s: float) -> None:
        """Raises EngineError where the scheduler does not answer."""
        how = {"security": self.security} if self.security else {}
        try:
            client = Client(
                self.address, timeout=timeout_s, set_as_default=False, name="astrolabe", loop=self.loop.loop, **how
            )  # fmt: skip
        except (OSError, TimeoutError, ValueError) as error:  # ValueError: Tornado's, of a TLS that is cut at its start
            raise EngineError(f"no scheduler answers at {self.address}: {error}") from None

        def prepare(dask_scheduler: Any) -> None:
            dask_scheduler.allowed_failures = FAILURES
            import harness.cluster.worker  # noqa: F401, where its jobs' functions are: the first one waited half a second for it

        client.run_on_scheduler(prepare)
        client.subscribe_topic(self.topic, self._heard)
        self.client = client

    def connect_again(self, lost: Client | None) -> None:
        """A new connection in place of the lost one, once for all threads. Raises EngineError after `lost_s`."""
        with self.lock:
            if self.client is not lost:
                return
            late = time.monotonic() + self.lost_s
            if lost is not None:
                with contextlib.suppress(Exception):  # it is broken: whatever closing it raises, it is gone
                    lost.close(timeout=2)
            self.forget()
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

    def forget(self) -> None:
        """What went with a connection that is gone."""

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

    # ------------------------------------------------------------------------------------------ who is there

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
            self._name_other_software(found)
            for status in found:
                if status.state == "set aside" and self.aside.get(status.place) != status.reason:
                    self.aside[status.place] = status.reason
                    self.say(f"{status.place} is set aside: {status.reason}")
                elif status.state == "ready":
                    self.aside.pop(status.place, None)
            self.seen = sorted(found, key=lambda status: status.place)

    def _name_other_software(self, found: list[Status]) -> None:
        """Once for each kind of difference, and whose it is first."""
        for status in found:
            theirs, ours = set(status.software.split(", ")), set(software().split(", "))
            if (other := ", ".join(sorted(theirs - ours))) and other not in self.other_software:
                self.other_software.add(other)
                self.say(f"{status.place} has {other} where this machine has {', '.join(sorted(ours - theirs))}")

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
            self.forget()
        if self.local is not None:
            self.local.close()
            self.local = None
        self.loop.close()
