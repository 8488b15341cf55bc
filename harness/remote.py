"""An Evaluator whose work is done by an engine elsewhere: the same questions, keys and verdicts; only who answers differs."""

from __future__ import annotations

import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from harness import jobs
from harness.evaluate import Evaluator
from harness.jobs import ERRORS, BuildBundle, Job, JobAnswer, SessionBundle
from harness.questions import Answer, EvaluationQuestion, KernelIndependent
from harness.records import DeviceFacts, Verdict
from harness.store import ASKER, Store, digest, write_atomically
from kernels.catalog import Kernel
from kernels.spec import Device

PACKED = 12
"""Builds that an Evaluator keeps in memory, ready to travel."""


class TookDown(Exception):
    """The workers that did this job died of it, one after the other; the message says which."""


class Transport(Protocol):
    """How an engine carries a job out and its answer back."""

    def ask(
        self, job: Job, contents: dict[str, bytes], say: Callable[[str], None], began: Callable[[str], None]
    ) -> JobAnswer:
        """`began` is told the place once somebody works on it. Raises TookDown and EngineError."""
        ...

    def width(self) -> int: ...

    def idle(self) -> int:
        """Devices that have nothing of ours to do."""
        ...

    def release(self, names: set[str], asker: str) -> None:
        """That asker has no more questions, and nobody needs those contents for it."""
        ...


class Clock:
    """Seconds in which somebody asked and nobody worked: a run's budget does not pay for another run's turn."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.asking = self.working = 0
        self.since = 0.0
        self.total = 0.0

    def turn(self, asking: int = 0, working: int = 0) -> None:
        clock = time.monotonic()
        with self.lock:
            if self.asking and not self.working:
                self.total += clock - self.since
            self.asking, self.working, self.since = self.asking + asking, self.working + working, clock


@dataclass(frozen=True)
class PackedBuild:
    """A build as it travels. To read, hash and name it takes 8 ms, longer than all else of a question on its way."""

    bundle: BuildBundle
    files: dict[str, bytes]
    module: str
    """Name of its backend's module."""
    toolchain: tuple[str, str]
    """What `Evaluator.toolchain` says of that."""


class RemoteEvaluator(Evaluator):
    """Safe for several threads at once. Nothing is loaded, called or timed in this process or on this machine's devices."""

    def __init__(
        self, transport: Transport, facts: DeviceFacts, memory_bytes: int, kernel: Kernel, on: Device, store: Store, **settings: Any
    ) -> None:  # fmt: skip
        super().__init__(kernel, on, store, facts=facts, memory_bytes=memory_bytes, **settings)
        self.transport, self.builds_apart = transport, on == "cuda"
        self.parcel, self.contents = jobs.bundle_kernel(kernel)
        self.asker = _asker(store.folder)
        self.places: set[str] = set()
        self.clock = Clock()
        self.lock = threading.Lock()
        self.sent: set[str] = set()
        self.packed: OrderedDict[str, PackedBuild] = OrderedDict()
        """The builds that were asked about last: a problem's questions are about the same."""

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.transport.width()

    @property
    def waited_s(self) -> float:  # type: ignore[override]
        self.clock.turn()
        return self.clock.total

    def sanitize_beside(self, verdict: Verdict, work: Callable[[Verdict], Verdict]) -> Verdict:
        """One after the other: a device does one job at a time."""
        return work(super().sanitize_beside(verdict, lambda same: same))

    def _judge(self, question: EvaluationQuestion[Answer]) -> Answer:
        """Sends it. Raises what an Evaluator raises."""
        if not question.needs_device(self):
            return super()._judge(question)
        if self.width > 1 and (whole := question.answer_in_parts(self, self.ask, self.transport.idle)) is not None:
            return whole
        try:
            told = self._send(question)
        except TookDown as fault:
            return question.answer_after_crashes(self, str(fault))
        return question.import_answer(question.record().model_validate_json(told.record), told.files)

    def _send(self, question: EvaluationQuestion) -> JobAnswer:
        packed: dict[str, bytes] = {}
        session = self._pack_session(question, packed) if not isinstance(question, KernelIndependent) else None
        job = Job(
            question=question, asker=self.asker, facts=self.facts, memory_bytes=self.device_bytes, session=session
        )
        with self.lock:
            self.sent |= job.hashes
        contents = {name: packed[name] if name in packed else self.content(name) for name in job.hashes}
        with self._asking(question.timed) as began:
            answer = self.transport.ask(job, contents, self.say, began)
        if answer.error is not None:
            kind, said = answer.error
            raise ERRORS[kind](said)
        for kind, key, record in answer.kept:
            self.store.keep_text(kind, key, record)
        with self.lock:
            self.layers = answer.layers or self.layers
            self.notices = tuple(dict.fromkeys((*self.notices, *answer.notices)))
            self.measured |= answer.measured
            if question.timed:
                self.measured["devices"] = "; ".join(sorted(self.places))
        return answer

    def _pack_session(self, question: EvaluationQuestion, contents: dict[str, bytes]) -> SessionBundle:
        """With the builds of what it is about, made elsewhere if they are not there; what they consist of goes into `contents`."""
        names = list(dict.fromkeys(filter(None, [*question.candidates, *self._always])))
        with self.lock:
            found = {name: self.packed[name] for name in names if name in self.packed}
        if missing := [name for name in names if name not in found]:
            with ThreadPoolExecutor(len(missing)) as pool:
                found |= dict(zip(missing, pool.map(self._pack, missing), strict=True))
        with self.lock:
            for name in names:
                self.packed[name] = found[name]
                self.packed.move_to_end(name)
            while len(self.packed) > max(PACKED, len(names)):
                self.packed.popitem(last=False)
        packed = [found[name] for name in names]
        for one in packed:
            contents |= one.files
        chains = {one.module: one.toolchain for one in packed}
        return SessionBundle(
            kernel=self.parcel, settings=self.settings, workloads=self.extra_workloads, values=self.extra_values,
            toolchains=chains, builds=tuple(one.bundle for one in packed),
        )  # fmt: skip

    @cached_property
    def _always(self) -> tuple[str, ...]:
        """Hashes of the sources that stand beside whatever is asked about."""
        return (*self.beside(), *self.rules.eager(), self.settings.exact_to)

    def _pack(self, name: str) -> PackedBuild:
        module, build = self.backend(name), self.build(name)
        bundle, files = jobs.bundle_build(self.build_key(name, module), build)
        return PackedBuild(bundle, files, module.__name__, self.toolchain(module))

    @contextmanager
    def _asking(self, timed: bool) -> Iterator[Callable[[str], None]]:
        """Counts the time until somebody works on it as waiting."""
        working = 0

        def began(place: str) -> None:
            nonlocal working
            if timed:
                self.places.add(place)
            if not working:
                working = 1
                self.clock.turn(working=1)

        self.clock.turn(asking=1)
        try:
            yield began
        finally:
            self.clock.turn(asking=-1, working=-working)

    def close(self) -> None:
        super().close()
        self.transport.release(self.sent, self.asker)


def _asker(folder: Path) -> str:
    """Who asks: the store, by a name that no other store has, so that nobody is given what was measured for another."""
    path = folder / ASKER
    if not path.exists():
        write_atomically(path, secrets.token_hex(16))
    return digest(path.read_text())[:32]
