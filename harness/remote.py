"""An Evaluator whose work is done by an engine elsewhere: the same questions, keys and verdicts; only who answers differs."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any, Protocol, TypeVar

from pydantic import BaseModel

from harness import jobs
from harness.evaluate import Evaluator, Readings, Sanitized
from harness.jobs import ERRORS, BuildBundle, Job, JobAnswer, Op
from harness.judge.comparisons import ComparisonRequest, OtherContexts
from harness.judge.quick import Case, Quick
from harness.judge.search import Tuned, find_open_tunables
from harness.judge.verification import Drawn
from harness.problems.pytorch import Problem
from harness.records import Build, DeviceFacts, Outcome, Verdict
from harness.store import Store, digest, write_atomically
from harness.timing import neighbours, roofs
from kernels.catalog import Kernel
from kernels.spec import Device, Workload

Record = TypeVar("Record", bound=BaseModel)


class TookDown(Exception):
    """The workers that did this job died of it, one after the other; the message says which."""


class Transport(Protocol):
    """How an engine carries a job out and its answer back."""

    def ask(
        self, job: Job, contents: dict[str, bytes], say: Callable[[str], None], began: Callable[[str], None]
    ) -> JobAnswer:
        """`began` is told the place once somebody works on it. Raises TookDown and EngineError."""
        ...

    def toolchain(self, job: Job) -> tuple[str, str]: ...

    def width(self) -> int: ...

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


class RemoteEvaluator(Evaluator):
    """Safe for several threads at once. Nothing is loaded, called or timed in this process or on this machine's devices."""

    def __init__(
        self, transport: Transport, facts: DeviceFacts, memory_bytes: int, kernel: Kernel, on: Device, store: Store, **settings: Any
    ) -> None:  # fmt: skip
        super().__init__(kernel, on, store, facts=facts, memory_bytes=memory_bytes, **settings)
        self.transport = transport
        self.parcel, self.contents = jobs.bundle_kernel(kernel)
        self.asker = _asker(store.folder)
        self.places: set[str] = set()
        self.clock = Clock()
        self.lock = threading.Lock()
        self.sent: set[str] = set()

    @property
    def width(self) -> int:  # type: ignore[override]
        return self.transport.width()

    @property
    def waited_s(self) -> float:  # type: ignore[override]
        self.clock.turn()
        return self.clock.total

    # --- asking --------------------------------------------------------------------------------------------------

    def _job(self, op: Op, **asked: Any) -> Job:
        return Job(
            op=op, asker=self.asker, device=self.device, facts=self.facts, memory_bytes=self.device_bytes, **asked
        )

    def _ask(self, op: Op, answer: type[Record], builds: list[str], **asked: Any) -> Record:
        """`builds`: the sources whose builds the far side needs. Raises TookDown, and what an Evaluator raises."""
        contents = dict(self.contents)
        packed = [self._pack(name, contents) for name in dict.fromkeys(filter(None, builds))]
        sources = tuple(one.build.candidate for one in packed)
        if "candidate" in asked and asked["candidate"] not in sources:
            sources = (*sources, asked["candidate"])
        contents |= {name: self.store.get(name).encode() for name in sources}
        settings = {
            "workloads": self.extra_workloads, "values": self.extra_values, "dtypes": self.dtypes,
            "sandbox_mode": self.sandbox_mode, "own_kernels": self.own_kernels, "exact_to": self.exact_to,
        }  # fmt: skip
        chains = {self.backend(name).__name__: self.toolchain(self.backend(name)) for name in sources}
        job = self._job(
            op, parcel=self.parcel, builds=tuple(packed), sources=sources, toolchains=chains, **settings | asked
        )
        return answer.model_validate_json(self._carry(job, contents).record)

    def _carry(self, job: Job, contents: dict[str, bytes]) -> JobAnswer:
        with self.lock:
            self.sent |= job.hashes
        with self._asking(job.op in jobs.TIMED) as began:
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
            if job.op in jobs.TIMED:
                self.measured["devices"] = "; ".join(sorted(self.places))
        return answer

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

    def _pack(self, candidate: str, contents: dict[str, bytes]) -> BuildBundle:
        """The build of that source, made elsewhere if it is not there; what it consists of goes into `contents`."""
        build, module = self.build(candidate), self.backend(candidate)
        key = self.build_key(candidate, module)
        one, its = jobs.bundle_build(key, build)
        contents |= its
        return one

    def _seen(self) -> list[str]:
        """What a check needs besides the candidate."""
        beside = [self.store.put(neighbours.SOURCE.read_text())] if self.device == "cuda" else []
        eager = [self.store.put(self.kernel.text)] if isinstance(self.kernel, Problem) else []
        return [*beside, *eager, self.exact_to]

    # --- answers -------------------------------------------------------------------------------------------------

    def toolchain(self, module: ModuleType) -> tuple[str, str]:
        return self.transport.toolchain(self._job("toolchain", backend=module.__name__.rpartition(".")[2]))

    def _made(self, candidate: str, module: ModuleType, into: Path) -> Build:
        backend = module.__name__.rpartition(".")[2]
        brought = self.brought(candidate, module)
        contents = {candidate: self.store.get(candidate).encode()}
        contents |= {digest(text): text for text in brought.headers.values()}
        job = self._job(
            "build", candidate=candidate, backend=backend, entry=self._entry(module), sources=(candidate,),
            flags=brought.flags, include=brought.include,
            headers={name: digest(text) for name, text in brought.headers.items()},
        )  # fmt: skip
        try:
            answer = self._carry(job, contents)
        except TookDown as fault:
            return Build(candidate=candidate, backend=backend, ok=False, log=f"error: {fault}")
        build = Build.model_validate_json(answer.record)
        return jobs.place_build(build, into, answer.files)

    def _admit(self, added: tuple[Workload, ...], values: dict[str, tuple[str, ...]]) -> None:
        try:
            self._ask("admit", jobs.TextRecord, [], workloads=added, values=values)
        except TookDown as fault:
            raise ValueError(f"{', '.join(w.label for w in added)}: {fault}") from None

    def _verify(
        self, build: Build, workloads: tuple[Workload, ...], *, held_out: bool, only: Workload | None
    ) -> Verdict:
        if not build.ok and not isinstance(self.kernel, Problem):  # nothing is run for that
            return super()._verify(build, workloads, held_out=held_out, only=only)
        asked = {"candidate": build.candidate, "held_out": held_out, "only": only}
        try:
            verdict = self._ask("verify", Verdict, [build.candidate, *self._seen()], **asked)
        except TookDown as fault:
            return Verdict(
                candidate=build.candidate, kernel=self.spec.name, device=self.facts.name,
                outcome=Outcome.RUNTIME_ERROR, reason=str(fault), build=build,
            )  # fmt: skip
        return verdict.model_copy(update={"build": build})

    def _measure(
        self, verdict: Verdict, request: ComparisonRequest, *, held_out: bool, contests: int, again: bool
    ) -> Verdict:
        rivals = request.rivals
        builds = [verdict.candidate, *rivals.values(), *self.beside(), *self._seen()]
        asked: dict[str, Any] = {"candidate": verdict.candidate, "verdict": verdict, "held_out": held_out}
        try:
            measured = self._ask(
                "measure", Verdict, builds, baseline=rivals["baseline"], incumbent=rivals.get("incumbent"),
                again=again, contests=contests, **asked,
            )  # fmt: skip
        except TookDown as fault:
            if verdict.candidate == rivals["baseline"]:
                raise RuntimeError(f"the baseline cannot be timed: {fault}") from None
            return verdict.failed(Outcome.RUNTIME_ERROR, str(fault))
        return measured.model_copy(update={"build": verdict.build})

    def _compare_briefly(self, request: ComparisonRequest, cases: tuple[Case, ...], seconds: float) -> Quick:
        candidate, rivals = request.build.candidate, request.rivals
        builds = [candidate, *rivals.values(), *self.beside()]
        try:
            return self._ask(
                "contend", Quick, builds, candidate=candidate, baseline=rivals["baseline"],
                incumbent=rivals.get("incumbent"), cases=cases, seconds=seconds,
            )  # fmt: skip
        except TookDown as fault:
            return Quick(outcome=Outcome.RUNTIME_ERROR, reason=str(fault))

    def _measure_other_contexts(self, verdict: Verdict, baseline: str) -> OtherContexts:
        builds = [verdict.candidate, baseline, *self.beside()]
        with _ours("times in other company"):
            return self._ask(
                "company", OtherContexts, builds, candidate=verdict.candidate, verdict=verdict, baseline=baseline
            )

    def _draw(self, build: Build, baseline: str, count: int) -> Drawn:
        try:
            return self._ask(
                "draws", Drawn, [build.candidate, baseline, *self.beside()], candidate=build.candidate,
                baseline=baseline, count=count,
            )  # fmt: skip
        except TookDown as fault:
            return Drawn(failure=f"{count} draws: {fault}")

    def _with_roofs(self) -> DeviceFacts:
        with _ours("what this device reaches at most"):
            return self._ask("roofs", DeviceFacts, [self.store.put(roofs.source(self.device).read_text())])

    def _readings(self, name: str, build: Build) -> Readings:
        asked = {"candidate": build.candidate, "probe": name}
        try:
            return self._ask("probe", Readings, [build.candidate, *self._seen()], **asked)
        except TookDown as fault:
            return Readings(values={"unavailable": str(fault)})

    def _watch(self, build: Build) -> Sanitized:
        with _ours("compute-sanitizer"):
            return self._ask("sanitize", Sanitized, [build.candidate, *self._seen()], candidate=build.candidate)

    def _search(self, candidate: str, seconds: float) -> Tuned:
        builds = [candidate, *self.beside(), *self._seen()]
        try:
            return self._ask("search", Tuned, builds, candidate=candidate, seconds=seconds)
        except TookDown as fault:
            as_it_came = {tunable.name: tunable.value for tunable in find_open_tunables(self.store.get(candidate))}
            return Tuned(candidate=candidate, values=as_it_came, reason=str(fault))

    def close(self) -> None:
        super().close()
        self.transport.release(self.sent, self.asker)


@contextmanager
def _ours(what: str) -> Iterator[None]:
    """A step that says nothing of the candidate's rightness: where it cannot be had, that is our failure."""
    try:
        yield
    except TookDown as fault:
        raise RuntimeError(f"{what}: {fault}") from None


def _asker(folder: Path) -> str:
    """Who asks: the store, by a name that no other store has, so that nobody is given what was measured for another."""
    path = folder / "asker"
    if not path.exists():
        write_atomically(path, secrets.token_hex(16))
    return digest(path.read_text())[:32]
