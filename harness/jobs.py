"""A question to an Evaluator as a thing of its own: it names by hash all that its answer depends on, so it can be asked anywhere.

    Job      what is asked, of which kernel, with which settings, sources and builds; small, its texts are hashes
    contents hash -> bytes, which travel apart, once to each machine
    Answer   what the Evaluator there said, with the records that it kept on the way

`Bench.answer` is the far side: an Evaluator that stays warm for one kernel, on a store of its own.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

from pydantic import BaseModel, Field

from harness import backends
from harness.evaluate import Evaluator
from harness.judge.comparisons import ComparisonRequest
from harness.judge.quick import Case
from harness.judge.session import Brought, MissingTool, compile_build
from harness.problems import pytorch
from harness.problems.pytorch import Problem
from harness.records import Build, DeviceFacts, Verdict
from harness.store import Store, digest, write_atomically
from harness.timing import roofs
from kernels import catalog
from kernels.catalog import Kernel, KernelError
from kernels.importers.kernelbench import Description
from kernels.spec import Device, Frozen, Spec, Workload

Op = Literal[
    "toolchain",
    "build",
    "admit",
    "verify",
    "measure",
    "company",
    "draws",
    "probe",
    "sanitize",
    "search",
    "roofs",
    "contend",
]
TIMED: frozenset[Op] = frozenset(
    {"admit", "verify", "measure", "company", "draws", "probe", "sanitize", "search", "roofs", "contend"}
)
"""These use the device, and have it for themselves."""
LEFT_OUT = ("wrong", "README.md", "__pycache__")
"""Of a kernel's folder: no answer depends on them."""
MOST_BYTES = 16 << 20
"""Of a kernel's folder."""
STORES = 16
"""Kept on the far side."""
NO_SPACE = os.strerror(errno.ENOSPC)


class KernelBundle(Frozen):
    """A kernel without its folder: its files by hash, and the spec as it is now (a test or a sweep may have changed it)."""

    name: str
    files: dict[str, str]
    """Path in the folder -> sha256."""
    spec: Spec
    problem: str = ""
    """Of a problem: sha256 of what its importer read, pickled. (Whoever may send a job may run code there anyway.)"""
    description: Description | None = None
    """Of a problem: as it was described where it was opened, so that nobody has to execute it for that again."""


class BuildBundle(Frozen):
    """A build and what it consists of."""

    key: str
    build: Build
    """Without the path of its artefact, which is another one everywhere."""
    files: dict[str, str]
    """Path in the build's folder -> sha256."""


class Job(Frozen):
    op: Op
    asker: str
    """Of whose store this is a question; what is kept for one is not shown to another."""
    device: Device
    facts: DeviceFacts
    memory_bytes: int
    parcel: KernelBundle | None = None
    """Without one only for `toolchain` and `build`."""
    dtypes: tuple[str, ...] = ()
    sandbox_mode: str = "auto"
    own_kernels: str = "some"
    exact_to: str = ""
    workloads: tuple[Workload, ...] = ()
    values: dict[str, tuple[str, ...]] = Field(default_factory=dict)
    toolchains: dict[str, tuple[str, str]] = Field(default_factory=dict)
    """Backend -> what `Evaluator.toolchain` says of it: builds are named after the compiler that made them."""
    builds: tuple[BuildBundle, ...] = ()
    sources: tuple[str, ...] = ()
    candidate: str = ""
    backend: str = ""
    entry: dict[str, str] = Field(default_factory=dict)
    flags: tuple[str, ...] = ()
    """Of a build: the kernel's own, its include folders, and its headers, path -> sha256."""
    include: tuple[str, ...] = ()
    headers: dict[str, str] = Field(default_factory=dict)
    probe: str = ""
    verdict: Verdict | None = None
    baseline: str = ""
    incumbent: str | None = None
    held_out: bool = False
    again: bool = False
    contests: int = 1
    only: Workload | None = None
    count: int = 0
    seconds: float = 0.0
    cases: tuple[Case, ...] = ()

    @property
    def name(self) -> str:
        """The same for the same question."""
        return f"{self.op}-{digest(self.model_dump_json())}"

    @property
    def hashes(self) -> set[str]:
        """Of all contents that it needs."""
        files = [*self.parcel.files.values(), self.parcel.problem] if self.parcel else []
        return {
            *filter(None, files),
            *self.headers.values(),
            *self.sources,
            *(name for built in self.builds for name in built.files.values()),
        }


@dataclass(frozen=True)
class JobAnswer:
    record: str = ""
    """JSON of what the op gives."""
    files: dict[str, bytes] = field(default_factory=dict)
    """Of a build, by path in its folder."""
    kept: tuple[tuple[str, str, str], ...] = ()
    """(kind, key, JSON) of the records that it kept besides."""
    layers: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    measured: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    error: tuple[str, str] | None = None
    """(kind, words) of an exception that the Evaluator raised there; see ERRORS."""


class TextRecord(Frozen):
    """An answer in words, or several."""

    words: tuple[str, ...] = ()


ERRORS: dict[str, type[Exception]] = {
    "KernelError": KernelError, "MissingTool": MissingTool, "ValueError": ValueError, "RuntimeError": RuntimeError,
}  # fmt: skip
"""What an Evaluator raises by its contract, raised again where the question came from. Anything else is a RuntimeError."""


def bundle_kernel(kernel: Kernel) -> tuple[KernelBundle, dict[str, bytes]]:
    """The kernel and its contents by hash. Raises KernelError for a folder that is too large to be sent about."""
    if isinstance(kernel, Problem):
        text, read = kernel.text.encode(), pickle.dumps(kernel.source)
        made = KernelBundle(
            name=kernel.spec.name, files={kernel.folder.name: digest(text)}, spec=kernel.spec, problem=digest(read),
            description=kernel.description,
        )  # fmt: skip
        return made, {digest(text): text, digest(read): read}
    found: dict[str, bytes] = {}
    for path in sorted(kernel.folder.rglob("*")):
        inside = path.relative_to(kernel.folder)
        if path.is_file() and not any(part in LEFT_OUT or part.startswith(".") for part in inside.parts):
            found[str(inside)] = path.read_bytes()
            if str(inside) not in kernel.headers and sum(map(len, found.values())) > MOST_BYTES:
                raise KernelError(
                    f"{kernel.folder} holds more than {MOST_BYTES >> 20} MiB: keep only the kernel's files"
                )
    found |= kernel.headers  # those behind links, too
    files = {name: digest(data) for name, data in found.items()}
    return KernelBundle(name=kernel.spec.name, files=files, spec=kernel.spec), {digest(d): d for d in found.values()}


def bundle_build(key: str, build: Build) -> tuple[BuildBundle, dict[str, bytes]]:
    """A build of the store and its contents by hash."""
    contents = _files(build) if build.ok else {}
    files = {name: digest(data) for name, data in contents.items()}
    bare = build.model_copy(update={"artefact": Path(build.artefact).name if build.ok else ""})
    return BuildBundle(key=key, build=bare, files=files), {digest(data): data for data in contents.values()}


def _files(build: Build) -> dict[str, bytes]:
    artefact = Path(build.artefact)  # in another store's folder where a run was forked
    paths = sorted(artefact.rglob("*")) if artefact.is_dir() else [artefact]
    return {str(path.relative_to(artefact.parent)): path.read_bytes() for path in paths if path.is_file()}


def place_build(build: Build, folder: Path, files: dict[str, bytes]) -> Build:
    """The build with its files written into `folder`."""
    for name, data in files.items():
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{name} is no path in a build's folder")
        if not path.exists():
            write_atomically(path, data)
    return build.model_copy(update={"artefact": str(folder / build.artefact) if build.ok else ""})


class RecordingStore(Store):
    """A store that notes what is kept in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.new: list[tuple[str, str, str]] = []

    def keep(self, kind: str, key: str, record: BaseModel) -> None:
        super().keep(kind, key, record)
        self.new.append((kind, key, record.model_dump_json()))


ASKED = ("build", "verdict", "tuned", "elsewhere", "draws", "probe", "sanitizer")
"""Kinds of records that are answers: who asked keeps them."""


class HostedEvaluator(Evaluator):
    """An Evaluator that works for another one, which says with which compilers builds are made."""

    toolchains: dict[str, tuple[str, str]] = {}  # noqa: RUF012, set for every job

    def toolchain(self, module: ModuleType) -> tuple[str, str]:
        return self.toolchains.get(module.__name__) or super().toolchain(module)


class EvaluationServer:
    """Answers jobs one after another in a folder of its own; `build` and `toolchain` also side by side. Close it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm: tuple[str, HostedEvaluator] | None = None

    def answer(self, job: Job, contents: dict[str, bytes], say: Callable[[str], None]) -> JobAnswer:
        """Raises OSError and DeviceError where this machine fails, and whatever `say` raises."""
        began = time.perf_counter()
        try:
            answer = self._answer(job, contents, say)
        except (KernelError, MissingTool, ValueError) as error:
            self.close()
            return JobAnswer(error=(_kind(error), str(error)), seconds=time.perf_counter() - began)
        except RuntimeError as error:
            self.close()
            if type(error).__name__ == "OutOfMemoryError":  # torch's: of this question, not of the device
                said = f"judging it takes more memory than this device has: {str(error).partition('. ')[0]}"
                return JobAnswer(error=("KernelError", said), seconds=time.perf_counter() - began)
            if type(error) is not RuntimeError:  # torch's, of a device that can be used no more, among others
                raise
            return JobAnswer(error=("RuntimeError", str(error)), seconds=time.perf_counter() - began)
        except BaseException:
            self.close()
            raise
        return JobAnswer(**{**answer.__dict__, "seconds": time.perf_counter() - began})

    def _answer(self, job: Job, contents: dict[str, bytes], say: Callable[[str], None]) -> JobAnswer:
        for name in job.hashes:
            if digest(contents[name]) != name:
                raise ValueError(f"what was sent as {name[:12]} has another hash")
        if job.op == "toolchain":
            module = backends.get(job.backend)
            missing = module.why_unavailable()
            return _said(TextRecord(words=(missing, "" if missing else module.identity(job.facts))))
        if job.op == "build":
            return self._build(job, contents, say)
        evaluator = self._evaluator(job, contents)
        evaluator.say, store = say, evaluator.store
        assert isinstance(store, RecordingStore)
        store.new = []
        record = ANSWERS[job.op](evaluator, job)
        return JobAnswer(
            record=record.model_dump_json(),
            kept=tuple(one for one in store.new if one[0] not in ASKED),
            layers=evaluator.layers, notices=evaluator.notices, measured=dict(evaluator.measured),
        )  # fmt: skip

    def _build(self, job: Job, contents: dict[str, bytes], say: Callable[[str], None]) -> JobAnswer:
        module = backends.get(job.backend)
        if missing := module.why_unavailable():
            raise MissingTool(missing)
        folder = Store(self.folder / "builders" / job.asker).build_folder(digest(job.model_dump_json()))
        try:
            say(f"building with {job.backend}")
            brought = Brought(job.flags, job.include, {name: contents[held] for name, held in job.headers.items()})
            build = compile_build(
                job.candidate, contents[job.candidate].decode(), module, folder, job.facts, brought, **job.entry
            )
            if not build.ok and NO_SPACE in build.log:
                raise OSError(errno.ENOSPC, NO_SPACE, str(folder))  # of this machine, not of the candidate
            files = _files(build) if build.ok else {}
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # it travels back; nobody asks this machine for it again
        bare = build.model_copy(update={"artefact": Path(build.artefact).name if build.ok else ""})
        return JobAnswer(record=bare.model_dump_json(), files=files)

    def _evaluator(self, job: Job, contents: dict[str, bytes]) -> HostedEvaluator:
        """The one that is warm, or another in its place, knowing the job's sources, builds and workloads."""
        assert job.parcel is not None
        settings: dict[str, Any] = {
            "dtypes": job.dtypes, "sandbox_mode": job.sandbox_mode, "own_kernels": job.own_kernels,
            "exact_to": job.exact_to, "facts": job.facts, "memory_bytes": job.memory_bytes,
        }  # fmt: skip
        name = digest(job.asker, job.parcel.model_dump_json(), *map(str, settings.values()))
        if self.warm is None or self.warm[0] != name:
            self.close()
            store = RecordingStore(self._store(job.asker))
            kernel = self._kernel(job.parcel, contents, job.device)
            self.warm = (name, HostedEvaluator(kernel, job.device, store, **settings))
        evaluator = self.warm[1]
        evaluator.toolchains = job.toolchains
        for source in job.sources:
            evaluator.store.put(contents[source].decode())
        for one in job.builds:
            if evaluator.store.find_record("build", one.key, Build) is None:
                files = {path: contents[hash_] for path, hash_ in one.files.items()}
                there = place_build(one.build, evaluator.store.build_folder(one.key), files)
                evaluator.store.keep("build", one.key, there)
        if (evaluator.extra_workloads, evaluator.extra_values) != (job.workloads, job.values) and job.op != "admit":
            evaluator.extra_workloads, evaluator.extra_values = job.workloads, dict(job.values)
        return evaluator

    def _store(self, asker: str) -> Path:
        """Of those that asked lately; the others are done, or are answered anew."""
        stores = self.folder / "stores"
        stores.mkdir(parents=True, exist_ok=True)
        by_age = sorted(stores.iterdir(), key=lambda path: path.stat().st_mtime)
        for old in by_age[: max(0, len(by_age) - STORES)]:
            if old.name != asker:
                shutil.rmtree(old)
        (stores / asker).mkdir(exist_ok=True)
        os.utime(stores / asker)
        return stores / asker

    def _kernel(self, bundle: KernelBundle, contents: dict[str, bytes], on: Device) -> Kernel:
        folder = self.folder / "kernels" / digest(bundle.model_dump_json())[:32] / bundle.name
        for name, hash_ in bundle.files.items():
            path = folder / name
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ValueError(f"{name} is no path in a kernel's folder")
            if not path.exists():
                write_atomically(path, contents[hash_])
        if not bundle.problem or bundle.description is None:
            return catalog.drawing(Kernel(spec=bundle.spec, folder=folder))
        (name,) = bundle.files
        source = pickle.loads(contents[bundle.problem])
        return pytorch.reopen(folder / name, source, bundle.description, bundle.spec, on)

    def close(self) -> None:
        """End what is warm. Safe to call twice."""
        if self.warm is not None:
            (_name, evaluator), self.warm = self.warm, None
            evaluator.close()


def _kind(error: Exception) -> str:
    return next(name for name, kind in ERRORS.items() if isinstance(error, kind))


def _said(record: BaseModel) -> JobAnswer:
    return JobAnswer(record=record.model_dump_json())


def _build_of(evaluator: Evaluator, job: Job) -> Build:
    return evaluator.build(job.candidate)


def _with_build(evaluator: Evaluator, job: Job) -> Verdict:
    """The verdict that was sent, its build where it is here."""
    assert job.verdict is not None
    return job.verdict.model_copy(update={"build": evaluator.build(job.candidate)})


def _admit(evaluator: Evaluator, job: Job) -> TextRecord:
    evaluator._admit(job.workloads, job.values)
    return TextRecord()


def _measure(evaluator: Evaluator, job: Job) -> Verdict:
    return evaluator.measure(
        _with_build(evaluator, job), baseline=job.baseline, incumbent=job.incumbent, held_out=job.held_out,
        again=job.again, contests=job.contests,
    )  # fmt: skip


def _rivals(job: Job) -> dict[str, str]:
    return {"baseline": job.baseline} | ({"incumbent": job.incumbent} if job.incumbent else {})


ANSWERS: dict[Op, Callable[[Evaluator, Job], BaseModel]] = {
    "admit": _admit,
    "verify": lambda e, job: e.verify(_build_of(e, job), held_out=job.held_out, only=job.only),
    "measure": _measure,
    "company": lambda e, job: e._measure_other_contexts(_with_build(e, job), job.baseline),
    "draws": lambda e, job: e._draw(_build_of(e, job), job.baseline, job.count),
    "probe": lambda e, job: e._readings(job.probe, _build_of(e, job)),
    "sanitize": lambda e, job: e._watch(_build_of(e, job)),
    "search": lambda e, job: e._search(job.candidate, job.seconds),
    "roofs": lambda e, _job: roofs.measure_roofs(e),
    "contend": lambda e, job: e._compare_briefly(
        ComparisonRequest(_build_of(e, job), _rivals(job)), job.cases, job.seconds
    ),
}


def words(error: BaseException) -> str:
    """An exception of ours in one line, with where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{where}"
