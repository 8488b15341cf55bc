"""One process a place: a Dask worker that answers jobs, the timed ones one at a time and with the device for itself."""

from __future__ import annotations

import asyncio
import fcntl
import gc
import os
import pickle
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any, cast

from distributed import Worker, get_worker
from distributed.security import Security
from distributed.utils import sync
from distributed.utils_comm import gather_from_workers

from harness import device as devices
from harness.cluster import DeviceModel, Status, build_resource, code, fitness, software
from harness.cluster.fitness import NotFit
from harness.cluster.leases import IDLE_S, LEND_S, Lease, LeaseOver
from harness.cluster.places import ClusterPlace
from harness.cluster.scheduler import configure
from harness.device import DeviceError
from harness.jobs import EvaluationServer, Job, JobAnswer, words
from harness.problems import pytorch
from harness.processes import worker as native
from harness.store import digest
from kernels.spec import Frozen

SAY_EVERY_S = 0.5
SHELF_BYTES = 1 << 30
"""Bytes of stored contents that a worker keeps; beyond, they are fetched again."""
STALLED = 70
"""Exit code of a worker whose job said nothing for too long."""


class Orders(Frozen):
    """What the supervisor tells a worker."""

    address: str
    place: ClusterPlace
    folder: str
    tls: str = ""
    contest_s: float = fitness.EVERY_S
    """0: no comparison of a binary with itself."""
    stall_s: float = 1200.0
    """A job that says nothing for so long hangs: its worker ends. The longest step, a compile or a reference, may take 300 s."""
    parked_s: float = 600.0
    """A place that is set aside is looked at again after so long."""
    room_bytes: int = fitness.ROOM_BYTES


class JobElsewhere(Exception):
    """This worker cannot do the job; another one may. (place, reason)"""


class Lacking(Exception):
    """Contents that no worker holds any more; (hash, ...)."""


class Cancelled(Exception):
    """Nobody waits for the answer any more."""


class Here:
    """The state of this process: its bench, what it is doing, whether it is fit."""

    def __init__(self, orders: Orders) -> None:
        self.orders, self.place = orders, orders.place
        self.bench = EvaluationServer(Path(orders.folder))
        self.shelf = Shelf(Path(orders.folder) / "contents")
        self.unfit = ""
        self.contest_at = -float("inf")
        self.doing, self.job, self.since, self.heard = "", "", time.monotonic(), time.monotonic()
        self.running = 0
        self.model: DeviceModel | None = None
        self.worker: Worker | None = None
        self.lent: Lease | None = None
        self.lent_as = ""
        """The scheduler's name for the job under which this place is lent."""
        self.builds = ThreadPoolExecutor(self.place.slots, thread_name_prefix="build")
        self.lock = threading.Lock()

    def look(self, *, held: bool = False) -> None:
        """Whether this place is fit, said in `unfit`. The device's facts are known afterwards where it is there.

        `held`: the caller is in `exclusive` already; leaving it twice would leave it once too often.
        """
        orders = self.orders
        contest = orders.contest_s > 0 and time.monotonic() - self.contest_at >= orders.contest_s
        try:
            if self.place.kind == "device":
                on = self.place.device
                if on == "cuda" and (missing := devices.why_no_cuda()):
                    raise NotFit(f"GPU {self.place.gpu} cannot be used: {missing}")
                if self.model is None or not held:  # `alive` asks the device after each job
                    self.model = DeviceModel(facts=devices.facts(on), memory_bytes=devices.memory_bytes(on))
                    self.alive()  # it opens the GPU, for which a first question would wait half a second
            with self.exclusive() if contest and not held else nullcontext():
                fitness.look(
                    self.place, Path(orders.folder), contest=contest, say=lambda _text: self._note(),
                    least=orders.room_bytes,
                )  # fmt: skip
            if contest:
                self.contest_at = time.monotonic()
        except (NotFit, DeviceError) as error:
            self.unfit = str(error)
        except RuntimeError as error:  # torch's own: a GPU that is listed and refuses
            self.unfit = words(error)
        except OSError as error:
            if error.errno not in fitness.FULL:
                raise
            self.unfit = f"its disk is full ({error})"

    def _note(self) -> None:
        self.heard = time.monotonic()

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        """The device for this process alone, also where another supervisor or user lends it too."""
        name = f"{self.place.device} {self.place.gpu or self.place.cores}"
        path = Path(os.environ.get("ASTROLABE_LOCKS", "/tmp")) / f"astrolabe-device-{digest(name)[:16]}"
        handle = _shared(path)
        try:
            while True:
                try:
                    fcntl.lockf(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError:
                    self._note()
                    time.sleep(0.05)
            yield
        finally:
            os.close(handle)

    def status(self, _worker: Worker | None = None) -> dict:
        return Status(
            place=self.place.name, kind=self.place.kind, state="set aside" if self.unfit else "ready",
            reason=self.unfit, facts=self.model.facts if self.model else None,
            memory_bytes=self.model.memory_bytes if self.model else 0, doing=self.doing, job=self.job,
            seconds=time.monotonic() - self.since, pid=os.getpid(), code=code(), software=software(),
            slots=self.place.slots,
        ).model_dump(mode="json")  # fmt: skip

    def resources(self) -> dict[str, float]:
        if self.unfit:
            return {}
        if self.place.kind == "builder":
            return {build_resource(): self.place.slots}
        assert self.model is not None
        return {self.model.resource: 1}

    def answer(self, job: Job, contents: Callable[[], dict[str, bytes]], say: Callable[[str], None]) -> JobAnswer:
        """Raises Elsewhere where it is this place that failed, and what `contents` and `say` raise."""
        if self.unfit:
            raise JobElsewhere(self.place.name, self.unfit)
        with self.lock:
            self.running += 1
            self.since = self.heard = time.monotonic()
            self.job, self.doing = job.name, _what(job)
        try:
            if self.place.kind == "builder":
                return self.bench.answer(job, contents(), say)
            with self.exclusive():
                if job.question.timed:
                    self.look(held=True)
                    if self.unfit:
                        raise JobElsewhere(self.place.name, self.unfit)
                    self.job, self.doing = job.name, _what(job)
                answer = self.bench.answer(job, contents(), say)
                self.alive()
                return answer
        except (OSError, DeviceError, MemoryError) as error:
            self.unfit = f"its disk is full ({words(error)})" if _full(error) else words(error)
            raise JobElsewhere(self.place.name, self.unfit) from None
        except (JobElsewhere, Cancelled):
            raise
        except RuntimeError as error:  # torch's own, of a device that this process can use no more
            self.unfit = words(error)
            raise JobElsewhere(self.place.name, self.unfit) from None
        finally:
            with self.lock:
                self.running -= 1
                self.since = time.monotonic()
                if not self.running:
                    self.job = self.doing = ""
            if self.unfit:
                self.leave()

    def alive(self) -> None:
        """Raises RuntimeError where the GPU is gone: what was just said of a candidate is not the candidate's doing."""
        if self.place.device == "cuda":
            import torch

            torch.cuda.synchronize()
            torch.cuda.mem_get_info()

    def leave(self) -> None:
        """End this worker, whose other jobs go elsewhere; the supervisor starts it again, and it is looked at anew."""
        worker = self.worker
        if worker is not None:
            worker.loop.call_later(0.5, lambda: asyncio.ensure_future(worker.close(reason=self.unfit)))

    def watch(self) -> None:
        """Ends the process where a job is silent for too long: what hangs in a driver cannot be interrupted."""
        while True:
            time.sleep(min(1.0, self.orders.stall_s / 4))
            if self.running and time.monotonic() - self.heard > self.orders.stall_s:
                os._exit(STALLED)


def _shared(path: Path) -> int:
    """A file that every user of this machine may lock, open; made where it is not there."""
    flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
    with suppress(FileNotFoundError):
        return os.open(path, flags)  # Linux refuses O_CREAT on another user's file in /tmp
    with suppress(FileExistsError):
        handle = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o600)
        os.fchmod(handle, 0o666)
        return handle
    return os.open(path, flags)


def _what(job: Job) -> str:
    kernel = [job.session.kernel.name] if job.session else []
    return " ".join([job.kind, *kernel, *(candidate[:9] for candidate in job.question.candidates[:1])])


def _full(error: BaseException) -> bool:
    return isinstance(error, OSError) and error.errno in fitness.FULL


_here: Here | None = None


def answer(text: str, topic: str) -> JobAnswer:
    """The function that the scheduler is given: a Job as JSON. What it says goes to `topic` as events.

    Its contents are no dependencies of it: Dask would give it to a busy worker that holds one rather than to an idle one.
    """
    here, worker, job = _hired(), get_worker(), Job.model_validate_json(text)
    worker.log_event(topic, {"job": job.name, "place": here.place.name, "began": os.getpid()})
    return _answer(here, worker, job, topic, worker.get_current_task(), {})


def _hired() -> Here:
    if _here is None:
        raise RuntimeError("this worker was not started by `run.py worker`")
    return _here


def _answer(here: Here, worker: Worker, job: Job, topic: str, key: str, contents: dict[str, bytes]) -> JobAnswer:
    """`key`: the scheduler's job of which this is a part, "" for none; `contents`: those that came with it."""
    last = 0.0

    def say(words: str) -> None:
        nonlocal last
        here._note()
        here.doing = f"{_what(job)}: {words}"
        task = worker.state.tasks.get(key)
        if key and (task is None or task.state in ("cancelled", "released")):
            raise Cancelled(job.name)
        if time.monotonic() - last >= SAY_EVERY_S:
            last = time.monotonic()
            worker.log_event(topic, {"job": job.name, "place": here.place.name, "said": words[:300]})

    return here.answer(job, lambda: here.shelf.fetch(sorted(job.hashes), worker, contents), say)


def hold(name: str, topic: str) -> None:
    """The function that the scheduler is given to lend this place: does what its client asks by `ask` (harness/cluster/leases.py)."""
    here, worker = _hired(), get_worker()
    lease, late = Lease(name), time.monotonic() + LEND_S
    here.lent, here.lent_as = lease, worker.get_current_task()
    worker.log_event(topic, {"job": name, "place": here.place.name, "began": os.getpid()})
    while (work := lease.next(IDLE_S if time.monotonic() < late else 0.0)) is not None:
        work()


async def ask(lease: str, topic: str, text: str, contents: dict[str, bytes]) -> bytes:
    """The answer to a client that comes here itself, or what was raised, pickled. Only under a lease, but for builds."""
    here, done = _hired(), Future[JobAnswer]()
    worker, lent = cast(Worker, here.worker), here.lent
    key = here.lent_as if lent is not None and lent.name == lease else ""

    def work() -> None:
        try:
            done.set_result(_answer(here, worker, Job.model_validate_json(text), topic, key, contents))
        except BaseException as error:  # noqa: BLE001, whoever asked raises it
            done.set_exception(error)

    if here.place.kind == "builder":
        here.builds.submit(work)
    elif not key or lent is None or not lent.put(work):
        return pickle.dumps(LeaseOver(lease))
    try:
        return pickle.dumps(await asyncio.wrap_future(done))
    except (JobElsewhere, Lacking, Cancelled) as error:
        return pickle.dumps(error)
    except Exception as error:  # noqa: BLE001
        return pickle.dumps(RuntimeError(words(error)))


async def end(lease: str) -> None:
    """Lend this place no more under that name."""
    if (lent := _hired().lent) is not None and lent.name == lease:
        lent.end()


def content_key(name: str) -> str:
    """Key by which the scheduler knows contents of that hash."""
    return f"content-{name}"


class Shelf:
    """Contents by hash that have come to this machine: each comes once, from whichever worker has it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.lock, self.bytes = folder, threading.Lock(), 0
        self.recent: dict[str, bytes] = {}
        """Contents that were asked for last: a problem's questions are about the same."""

    def fetch(self, names: list[str], worker: Worker, given: dict[str, bytes]) -> dict[str, bytes]:
        """`given`: contents that came with the question. Raises Lacking where one is nowhere, OSError where the disk is full."""
        with self.lock:
            self._put(given)
            if wanted := [name for name in names if name not in self.recent and not (self.folder / name).exists()]:
                if self.bytes > SHELF_BYTES:
                    shutil.rmtree(self.folder)
                    self.bytes, wanted = 0, names
                self._put(sync(worker.loop, _gathered, worker, wanted))
            kept = {name: self.recent.get(name) or (self.folder / name).read_bytes() for name in names}
            self.recent = kept
            return kept

    def _put(self, contents: dict[str, bytes]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, data in contents.items():  # not kept safe from a power cut: it goes with the worker
            (self.folder / f".{name}").write_bytes(data)
            os.replace(self.folder / f".{name}", self.folder / name)
            self.bytes += len(data)


async def _gathered(worker: Worker, names: list[str]) -> dict[str, bytes]:
    who_has = await worker.scheduler.who_has(keys=[content_key(name) for name in names])
    held = {key: list(holders) for key, holders in who_has.items() if holders}
    data, missing, failed, _gone = await gather_from_workers(held, rpc=worker.rpc)
    lacking = [name for name in names if content_key(name) not in data]
    if lacking or missing or failed:
        raise Lacking(*lacking)
    return {name: cast(bytes, data[content_key(name)]) for name in names}


def run(orders: Orders, security: Security | None) -> None:
    """Serves until the scheduler or the supervisor ends it."""
    global _here
    configure()
    os.sched_setaffinity(0, orders.place.cores)
    os.environ["TMPDIR"] = tempfile.tempdir = orders.folder
    here = _here = Here(orders)
    if orders.place.gpu:
        native.get_spares().wanted = native.WAITING_BESIDE_OTHERS
        with suppress(ImportError):  # `look` says so
            pytorch.begin_workers()  # it imports torch meanwhile; a first problem would wait for that
    here.look()
    gc.freeze()
    gc.enable()
    threading.Thread(target=here.watch, name="stall", daemon=True).start()

    async def serve() -> None:
        how: dict[str, Any] = {"security": security} if security else {}
        async with Worker(
            orders.address,
            nthreads=orders.place.slots,
            name=f"{orders.place.name} {os.getpid()}",
            resources=here.resources(),
            memory_limit=0,
            local_directory=orders.folder,
            dashboard=False,
            metrics={"astrolabe": here.status},
            death_timeout=60,
            **how,
        ) as worker:
            here.worker = worker
            worker.handlers |= {"astrolabe_ask": ask, "astrolabe_end": end}
            loop = asyncio.get_running_loop()
            stop = lambda: asyncio.ensure_future(worker.close(reason="asked to end"))  # noqa: E731
            loop.add_signal_handler(signal.SIGTERM, stop)
            if here.unfit:
                loop.call_later(orders.parked_s, stop)
            await worker.finished()

    asyncio.run(serve())
    os._exit(0)  # a job's thread may be at work for somebody who is gone
