"""The processes of one evaluator, and the memory that they share with it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from harness import backends
from harness.device import ArgumentBuffers, DeviceError
from harness.judge.own_libraries import OwnLibraries
from harness.problems.box import COMPILING, REFERENCE_S
from harness.processes import spares
from harness.processes.fork_server import PythonWorker, get_fork_server
from harness.processes.worker import LIMITS, SiblingWorker, Worker, WorkerFailure
from harness.records import Build, Outcome
from harness.timing.sampling import ArmFailure
from kernels.catalog import Kernel
from kernels.spec import Device

if TYPE_CHECKING:
    from harness.judge.rules import KernelRules

ARENA_BYTES = 64 << 20
"""An arena has so many at least, or it would be laid out anew for each larger workload."""
MEMORY_SHARE = 0.5
"""Share of the GPU memory free before its process started that a candidate may take."""


def is_python_side(module: ModuleType) -> bool:
    """Whether this toolchain's candidates are called with torch tensors (harness/farside/python_worker.py)."""
    return getattr(module, "PYTHON_SIDE", False)


class Pool:
    """One process a candidate, kept warm until another is judged, and the arena that all of them map. Close it."""

    def __init__(
        self,
        kernel: Kernel,
        on: Device,
        *,
        dtypes: tuple[str, ...],
        rules: KernelRules,
        company: Callable[[], Path],
        least: Callable[[], int],
        look: Callable[[Worker], None],
        ahead: Callable[[Build], None],
    ) -> None:
        """`rules`: how candidates of this kind of kernel start. `company`: the library of what stands around a
        timed call. `least`: bytes of the first arena. `look` sees every worker that was started, and may refuse it.
        `ahead`: what has to be done with a build before a process of it may be judged.
        """
        self.kernel, self.spec, self.device, self.dtypes = kernel, kernel.spec, on, dtypes
        self._rules, self._neighbours, self._least, self._look = rules, company, least, look
        self._ahead = ahead
        self.pinned: set[str] = set()
        """Candidates whose processes are kept alive."""
        self._arena: ArgumentBuffers | None = None
        self._workers: dict[str, Worker] = {}
        self._own = OwnLibraries(on, company)
        self._returned: dict[str, frozenset[str]] = {}
        """Candidate -> Worker.returned of its ended processes."""
        self._available: dict[str, int] = {}
        """Bytes that `_memory_available` gave before the candidate's process started, by candidate."""
        self._started: list[Worker] = []
        """Every process of `start` that may be alive: those that are not kept here have the argument buffers mapped,
        too."""
        self._starting = threading.RLock()
        """Held while a process starts: native workers are started by several threads at once."""
        self.beside: list[Future] = []
        """What uses the device in processes of others."""
        self._dying: list[Worker] = []
        """Workers that were killed and have not been waited for yet."""

    def get(self, build: Build) -> Worker:
        """The candidate's own process, started where it has none. Raises WorkerFailure where it cannot load."""
        if self._lives(build.candidate):
            return self._workers[build.candidate]
        self.drop(build.candidate)
        if self._short_of_memory():
            self.only(build.candidate)
            self.settle()  # a process that ends has its memory for seconds
        self._available[build.candidate] = self._memory_available()
        worker = self.start(build)
        self._workers[build.candidate] = worker
        return worker

    def begin_beside(self, build: Build) -> bool:
        """Whether a process of others' is this candidate's now, until it is dropped. Nothing is timed there."""
        if (worker := self._rules.start_beside(build, company=self._neighbours())) is None:
            return False
        self.drop(build.candidate)
        self._available[build.candidate] = self._memory_available()
        self._workers[build.candidate] = self._seen(worker)
        return True

    def begin(self, builds: Iterable[Build]) -> None:
        """Have those of these candidates that have no process get one, several at once on a GPU, where a context takes most of a start. What
        fails is left for `get`, which tries once more and says why."""
        new = {one.candidate: one for one in builds if not self._lives(one.candidate)}
        if self.device != "cuda" or len(new) < 2 or self._short_of_memory():
            return

        def start(build: Build) -> tuple[str, Worker | None]:
            with suppress(WorkerFailure):
                return build.candidate, self.start(build)
            return build.candidate, None

        before = self._memory_available()
        with ThreadPoolExecutor(len(new)) as threads:
            for name, worker in threads.map(start, new.values()):
                if worker is not None:
                    self.drop(name)
                    self._workers[name], self._available[name] = worker, before

    def _lives(self, candidate: str) -> bool:
        worker = self._workers.get(candidate)
        return worker is not None and worker.alive

    def match(self, candidate: str, rivals: Iterable[str]) -> None:
        """These processes may be there from now on, and ours."""
        self.pinned = set(rivals)
        self.only(candidate)

    def only(self, candidate: str) -> None:
        """End all but this candidate's process, those that are pinned, and ours.

        Before anything is judged: whoever was before maps the memory that it is judged in, and could do its work between
        two questions, or slow its rivals. That it is stopped is not enough on a GPU, where what it launched runs on.
        """
        for name in list(self._workers):
            if name != candidate and name not in self.pinned:
                self.drop(name)

    def _short_of_memory(self) -> bool:
        """Whether less than a quarter of the device is free: a candidate that took it all must not starve the next."""
        if self.device != "cuda":
            return False
        import torch

        free, total = torch.cuda.mem_get_info()
        return free < total / 4

    def _memory_available(self) -> int:
        """Bytes of the GPU that are free or our own; what is missing of it others have taken."""
        if self.device != "cuda":
            return 0
        import torch

        arena = self._arena.size if self._arena is not None else 0
        return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved() + arena + self.kernel.gpu_bytes()

    @contextmanager
    def guarding_memory(self, candidate: str) -> Iterator[None]:
        """Raises ArmFailure where that candidate has taken the GPU's memory, whatever failed of it or nothing did.

        No limit on a GPU's memory by process exists: one that takes it all makes us, the baseline or the next fail. A problem's
        own Model may take what it needs.
        """
        failed: Exception | None = None
        try:
            yield
        except (RuntimeError, DeviceError, WorkerFailure) as fault:
            failed = fault
        if taken := self._memory_taken(candidate):
            raise ArmFailure("candidate", Outcome.OUT_OF_RESOURCES, taken) from failed
        if failed is not None:
            raise failed

    def _memory_taken(self, candidate: str) -> str:
        """What is wrong with the memory that the candidate's process has taken, or "". One of which much is gone is ended, to see whose it was."""
        worker = self._workers.get(candidate)
        if self._rules.is_model(candidate):
            return ""
        if self.device != "cuda" or worker is None or not worker.alive:
            return ""
        before = self._available[candidate]
        taken = before - self._memory_available()
        if taken <= before * MEMORY_SHARE:
            return ""
        self.drop(candidate)
        self.settle()
        if before - self._memory_available() > before * MEMORY_SHARE:
            return ""  # it did not end with the candidate's process: somebody else's took it
        return f"its process took {taken / 2**30:.0f} GiB of the {before / 2**30:.0f} GiB of GPU memory that were free"

    def start(self, build: Build, *, compilers: bool = False) -> Worker:
        """A process of its own for this candidate, which the caller closes. Raises WorkerFailure where it cannot load.

        `compilers`: it may start programs, in the same box, and is not to be judged.
        """
        artefact = Path(build.artefact)
        if not compilers:
            with self._starting:
                self._ahead(build)
        if self.is_native(build):
            symbols = {dtype: self.spec.entry_names(dtype) for dtype in self.dtypes}
            native = Worker(device=self.device, artefact=artefact, symbols=symbols, company=self._neighbours())
            with self._starting:
                return self._seen(native)
        with self._starting:
            return self._seen(self._started_in_python(build, artefact, compilers=compilers))

    def start_beside(self, first: Worker, build: Build) -> Worker:
        """Another native candidate of the same author in the process of `first`. Raises WorkerFailure where it cannot load: then both end."""
        symbols = {dtype: self.spec.entry_names(dtype) for dtype in self.dtypes}
        return SiblingWorker(first, Path(build.artefact), symbols)

    def is_native(self, build: Build) -> bool:
        """Whether its process has no Python of the candidate's."""
        return build.backend != "model_new" and not is_python_side(backends.get(build.backend))

    def _started_in_python(self, build: Build, artefact: Path, *, compilers: bool) -> Worker:
        company = self._neighbours()
        if (own := self._rules.start(build, company=company, compilers=compilers)) is not None:
            return own
        ours = self._rules.is_model(build.candidate)
        compilers = compilers or ours
        server = get_fork_server(self.device, libraries=ours)
        return PythonWorker(
            server, self.spec, build.backend, device=self.device, artefact=artefact, dtypes=self.dtypes, company=company,
            limits=COMPILING if compilers else LIMITS, compilers=compilers, ours=ours, patience_s=REFERENCE_S if ours else 0.0,
        )  # fmt: skip

    def _seen(self, worker: Worker) -> Worker:
        self._started = [*(one for one in self._started if one.alive), worker]
        self._look(worker)
        return worker

    def ours(self, name: str, artefact: Path, symbols: dict[str, tuple[str, ...]]) -> Worker:
        """A worker that loads a library of ours, kept until the end."""
        worker, died = self._own.get(name, artefact, symbols)
        if died is not None:
            self.end(died)
        return worker

    def drop(self, candidate: str) -> None:
        worker = self._workers.pop(candidate, None)
        if worker is not None:
            self._returned[candidate] = self.returned(candidate) | worker.returned
            self.end(worker)

    def returned(self, candidate: str) -> frozenset[str]:
        """Worker.returned of that candidate, as far as it was called."""
        worker = self._workers.get(candidate)
        return self._returned.get(candidate, frozenset()) | (frozenset() if worker is None else worker.returned)

    def end(self, worker: Worker) -> None:
        """Have a process of `start` end, beside what comes next; nothing is timed before it has (`settle`)."""
        worker.kill()
        ended = [one for one in self._dying if not one.alive]
        self._dying = [*(one for one in self._dying if one not in ended), worker]
        # Or a hundred wrong candidates in a row leave as many open files, and threads that watch nobody.
        for one in ended:
            one.close()

    def settle(self) -> None:
        """Wait until every process that was dropped has ended, several at once, until none is being begun, and for what is `beside`."""
        spares.settle()
        wait(self.beside)
        self.beside.clear()
        while self._dying:
            self._dying[-1].close()
            self._dying.pop()  # not before: who interrupts may ask again

    def make_buffers(self, size: int) -> ArgumentBuffers:
        """An arena of at least `size` bytes; the workers let go of a smaller one."""
        if self._arena is None or self._arena.size < size:
            if self._arena is not None:
                everyone = [*self._workers.values(), *self._own.workers.values(), *self._started]
                for worker in {id(one): one for one in everyone}.values():
                    if worker.alive:
                        with suppress(WorkerFailure):  # it is no more, and whoever asks for it next gets another
                            worker.unmap(self._arena)
            self.settle()  # until it has ended a process has the memory mapped, or has taken it
            if self._arena is not None:
                self._arena.close()
            self._arena = ArgumentBuffers(self.device, max(size, self._least(), ARENA_BYTES))
        return self._arena

    def close(self) -> None:
        """End all workers and free the shared memory. Safe to call twice."""
        for candidate in list(self._workers):
            self.drop(candidate)
        for worker in self._own.leave(self._arena):
            self.end(worker)
        for worker in self._started:
            if worker not in self._dying and worker.alive:  # left by what was interrupted
                self.end(worker)
        self._started = []
        self.settle()
        if self._arena is not None:
            self._arena.close()
            self._arena = None
