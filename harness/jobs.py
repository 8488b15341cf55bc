"""A question (harness/questions.py) with all that its answer depends on, by hash, so that it can be asked anywhere.

    Job      what is asked, of which device, in which session: kernel, settings, sources and builds; small, its texts are hashes
    contents hash -> bytes, which travel apart, once to each machine
    Answer   what the Evaluator there said, with the records that it kept on the way

`EvaluationServer.answer` is the far side: an Evaluator that stays warm for one kernel, on a store of its own.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, PlainSerializer

from harness.evaluate import Evaluator
from harness.judge.builds import BuildPlace, place_build
from harness.judge.session import MissingTool, SessionSettings
from harness.problems import pytorch
from harness.questions import KINDS, Compile, EvaluationQuestion, KernelIndependent
from harness.records import Build, DeviceFacts
from harness.store import Store, digest, write_atomically
from kernels import catalog
from kernels.catalog import Kernel, KernelError
from kernels.importers.kernelbench import Description
from kernels.spec import Device, Frozen, Spec, Workload

STORES = 16
"""Number of stores kept on the far side."""
NO_SPACE = os.strerror(errno.ENOSPC)


class KernelBundle(Frozen):
    """A kernel without its folder: its files by hash, and the spec as it is now (a test or a sweep may have changed it)."""

    name: str
    files: dict[str, str]
    """sha256 of the kernel's files, by path in its folder."""
    spec: Spec
    problem: str = ""
    """sha256 of the problem's import, pickled; "" for a kernel's folder. (Whoever may send a job may run code there
    anyway.)"""
    description: Description | None = None
    """The problem's description from where it was opened, so that nobody has to execute it for that again."""


class BuildBundle(Frozen):
    """A build and what it consists of."""

    key: str
    build: Build
    """Without the path of its artefact, which is another one everywhere."""
    files: dict[str, str]
    """Path in the build's folder -> sha256."""


class SessionBundle(Frozen):
    """What an Evaluator elsewhere has to be like, and to know, to answer a question of a kernel."""

    kernel: KernelBundle
    settings: SessionSettings
    workloads: tuple[Workload, ...]
    values: dict[str, tuple[str, ...]]
    toolchains: dict[str, tuple[str, str]]
    """Backend -> what `Evaluator.toolchain` says of it: builds are named after the compiler that made them."""
    builds: tuple[BuildBundle, ...]


def _read(question: Any) -> EvaluationQuestion:
    if isinstance(question, EvaluationQuestion):
        return question
    ((kind, fields),) = question.items()
    if kind not in KINDS:
        raise ValueError(f"there is no question {kind!r}")
    return KINDS[kind].model_validate(fields)


def _write(question: EvaluationQuestion) -> dict[str, Any]:
    return {type(question).__name__: question.model_dump(mode="json")}


class Job(Frozen):
    question: Annotated[EvaluationQuestion, BeforeValidator(_read), PlainSerializer(_write)]
    asker: str
    """Identity of the store that asks; an answer kept for one asker is not shown to another."""
    facts: DeviceFacts
    memory_bytes: int
    session: SessionBundle | None
    """The kernel and what is judged beside it; None for questions about no kernel."""

    @property
    def kind(self) -> str:
        return type(self.question).__name__.lower()

    @property
    def name(self) -> str:
        """The same for the same question."""
        return f"{self.kind}-{digest(self.model_dump_json())}"

    @property
    def hashes(self) -> set[str]:
        """Hashes of all contents that it needs."""
        found = set(self.question.attachments)
        if of := self.session:
            files = [*of.kernel.files.values(), of.kernel.problem, *(one.build.candidate for one in of.builds)]
            found.update(*(one.files.values() for one in of.builds), filter(None, files))
        return found


@dataclass(frozen=True)
class JobAnswer:
    record: str = ""
    """JSON of what the question is answered with."""
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


ERRORS: dict[str, type[Exception]] = {
    "KernelError": KernelError, "MissingTool": MissingTool, "ValueError": ValueError, "RuntimeError": RuntimeError,
}  # fmt: skip
"""Exceptions that an Evaluator raises by its contract, raised again where the question came from. Anything else is a
RuntimeError."""


def bundle_kernel(kernel: Kernel) -> tuple[KernelBundle, dict[str, bytes]]:
    """The kernel and its contents by hash. Raises KernelError for a folder that is too large to be sent about."""
    found, (read, description) = kernel.files(), kernel.described()
    files = {name: digest(data) for name, data in found.items()}
    problem = digest(read) if read else ""
    bundle = KernelBundle(
        name=kernel.spec.name, files=files, spec=kernel.spec, problem=problem, description=description
    )
    return bundle, {digest(data): data for data in (*found.values(), *([read] if read else ()))}


def bundle_build(key: str, build: Build) -> tuple[BuildBundle, dict[str, bytes]]:
    """A build of the store and its contents by hash."""
    contents = _files(build)
    files = {name: digest(data) for name, data in contents.items()}
    return BuildBundle(key=key, build=_bare(build), files=files), {digest(data): data for data in contents.values()}


def _bare(build: Build) -> Build:
    return build.model_copy(update={"artefact": Path(build.artefact).name if build.ok else ""})


def _files(build: Build) -> dict[str, bytes]:
    if not build.ok:
        return {}
    artefact = Path(build.artefact)  # in another store's folder where a run was forked
    paths = sorted(artefact.rglob("*")) if artefact.is_dir() else [artefact]
    return {str(path.relative_to(artefact.parent)): path.read_bytes() for path in paths if path.is_file()}


class RecordingStore(Store):
    """A store that notes what is kept in it."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.new: list[tuple[str, str, str]] = []

    def keep(self, kind: str, key: str, record: BaseModel) -> None:
        super().keep(kind, key, record)
        self.new.append((kind, key, record.model_dump_json()))


class EvaluationServer:
    """Answers jobs one after another in a folder of its own; those without a session also side by side. Close it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.warm: tuple[str, Evaluator] | None = None

    def answer(self, job: Job, contents: dict[str, bytes], say: Callable[[str], None]) -> JobAnswer:
        """Raises OSError and DeviceError where this machine fails, and whatever `say` raises."""
        began = time.perf_counter()
        try:
            answer = self._answer(job, contents, say)
        except tuple(ERRORS.values()) as error:
            self.close()
            answer = JobAnswer(error=_explain(error))
        except BaseException:
            self.close()
            raise
        return replace(answer, seconds=time.perf_counter() - began)

    def _answer(self, job: Job, contents: dict[str, bytes], say: Callable[[str], None]) -> JobAnswer:
        for name in job.hashes:
            if digest(contents[name]) != name:
                raise ValueError(f"what was sent as {name[:12]} has another hash")
        if job.session is None:
            assert isinstance(job.question, KernelIndependent)
            return self._answer_alone(job.question, job, BuildPlace(job.facts, contents), say)
        evaluator = self._evaluator(job, job.session, contents)
        evaluator.say, store = say, evaluator.store
        assert isinstance(store, RecordingStore)
        store.new, question = [], job.question.localize(evaluator)
        record = evaluator.ask(question)
        return JobAnswer(
            record=record.model_dump_json(),
            kept=tuple(one for one in store.new if one[0] not in ("build", question.kept_as)),  # who asked keeps those
            layers=evaluator.layers, notices=evaluator.notices, measured=dict(evaluator.measured),
        )  # fmt: skip

    def _answer_alone(
        self, question: KernelIndependent, job: Job, place: BuildPlace, say: Callable[[str], None]
    ) -> JobAnswer:
        if not isinstance(question, Compile):
            return JobAnswer(record=question.answer(place).model_dump_json())
        folder = Store(self.folder / "builders" / job.asker).build_folder(digest(job.model_dump_json()))
        try:
            say(f"building with {question.backend}")
            build = question.model_copy(update={"into": str(folder)}).answer(place)
            if not build.ok and NO_SPACE in build.log:
                raise OSError(errno.ENOSPC, NO_SPACE, str(folder))  # of this machine, not of the candidate
            return JobAnswer(record=_bare(build).model_dump_json(), files=_files(build))
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # it travels back; nobody asks this machine for it again

    def _evaluator(self, job: Job, asked: SessionBundle, contents: dict[str, bytes]) -> Evaluator:
        """The one that is warm, or another in its place, knowing the job's sources, builds and workloads."""
        of_device = job.facts.model_dump_json(), str(job.memory_bytes)
        name = digest(job.asker, asked.kernel.model_dump_json(), asked.settings.model_dump_json(), *of_device)
        if self.warm is None or self.warm[0] != name:
            self.close()
            store, on = RecordingStore(self._store(job.asker)), job.facts.device
            kernel = self._kernel(asked.kernel, contents, on)
            of: dict[str, Any] = {**dict(asked.settings), "facts": job.facts, "memory_bytes": job.memory_bytes}
            self.warm = (name, Evaluator(kernel, on, store, **of))
        evaluator = self.warm[1]
        evaluator.toolchains = asked.toolchains
        for one in asked.builds:
            evaluator.store.put(contents[one.build.candidate].decode())
            if evaluator.store.find_record("build", one.key, Build) is None:
                files = {path: contents[hash_] for path, hash_ in one.files.items()}
                there = place_build(one.build, evaluator.store.build_folder(one.key), files)
                evaluator.store.keep("build", one.key, there)
        evaluator.extra_workloads, evaluator.extra_values = asked.workloads, dict(asked.values)
        return evaluator

    def _store(self, asker: str) -> Path:
        """The store of one of those that asked lately; the others are done, or are answered anew."""
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


def _explain(error: Exception) -> tuple[str, str]:
    """Kind and words of what an Evaluator raises. Raises the rest, which is of this machine: torch's of a device that can be used no
    more, among others."""
    if type(error).__name__ == "OutOfMemoryError":  # torch's: of this question, not of the device
        said = str(error).partition(". ")[0]
        return "KernelError", f"judging it takes more memory than this device has: {said}"
    for name, kind in ERRORS.items():
        if isinstance(error, kind) and (kind is not RuntimeError or type(error) is RuntimeError):
            return name, str(error)
    raise error


def words(error: BaseException) -> str:
    """An exception of ours in one line, with where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({Path(last[0].filename).name}, line {last[0].lineno})" if last else ""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}{where}"
