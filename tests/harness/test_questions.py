"""The contract of harness/questions.py: every question travels, is answered with its record, and is all that a new one needs."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from pydantic import BaseModel

from harness import backends, device, jobs
from harness import remote as near_side
from harness.evaluate import Evaluator
from harness.jobs import EvaluationServer, Job, JobAnswer
from harness.judge.session import EvaluationSession
from harness.questions import KINDS, AboutBuild, EvaluationQuestion, KernelIndependent, MeasureVariants
from harness.records import Build, Check, Outcome, Verdict
from harness.remote import RemoteEvaluator, TookDown
from harness.store import Store
from kernels import catalog
from kernels.spec import Frozen, Workload

SMALL = Workload(axes={"tokens": 3, "hidden": 64}, dtype="float32")
BUILD = Build(candidate="mine", backend="cpu", ok=True, artefact="/here/mine.so")
PASSED = Verdict(
    candidate="mine", kernel="k", device="d", outcome=Outcome.PASSED, checks=(Check(workload="w", name="n", passed=True),)
)  # fmt: skip
FILLED: dict[Any, Any] = {
    Build: BUILD, Verdict: PASSED, str: "text", int: 2, float: 1.5, bool: True, dict[str, str]: {"a": "b"},
    tuple[Workload, ...]: (SMALL,), dict[str, tuple[str, ...]]: {"input": ("uniform",)},
    tuple[dict[str, int], ...]: ({"SIZE": 2},),
}  # fmt: skip
ALL = [kind for kind in KINDS.values() if kind.__module__ == "harness.questions" and "[" not in kind.__name__]
ASKED = [kind for kind in ALL if not inspect.getsource(kind.answer).strip().endswith("raise NotImplementedError")]
needs_compiler = pytest.mark.skipif(bool(backends.get("cpu").why_unavailable()), reason="g++ is not installed")


def example(kind: type[EvaluationQuestion]) -> EvaluationQuestion:
    hints = get_type_hints(kind)
    required = {name for name, field in kind.model_fields.items() if field.is_required()}
    case = (SMALL, "hot", "plain") if kind is MeasureVariants else (SMALL, "hot")
    cases = {"cases": (case,)} if "cases" in required else {}
    return kind(**cases, **{name: FILLED[hints[name]] for name in required - {"cases"}})


def kernel() -> catalog.Kernel:
    of = catalog.load("silu_and_mul")
    held_out = SMALL.model_copy(update={"axes": {"tokens": 5, "hidden": 64}, "held_out": True})
    return replace(of, spec=of.spec.model_copy(update={"workloads": (SMALL, held_out), "dtypes": ("float32",)}))


class Across:
    """A transport to a server in this process."""

    def __init__(self, folder: Path, died: bool = False) -> None:
        self.server, self.died = EvaluationServer(folder), died
        self.asked: list[str] = []

    def ask(self, job: Job, contents: dict[str, bytes], say: Callable, began: Callable) -> JobAnswer:
        self.asked.append(job.kind)
        if self.died and not isinstance(job.question, KernelIndependent):
            raise TookDown("its worker died 2 times while it was at this (gpu 0)")
        return self.server.answer(Job.model_validate_json(job.model_dump_json()), contents, say)

    def width(self) -> int:
        return 1

    def release(self, names: set[str], asker: str) -> None:
        self.server.close()


def remote(folder: Path, **more: Any) -> tuple[RemoteEvaluator, Across]:
    transport = Across(folder / "far", **more)
    return RemoteEvaluator(transport, device.facts("cpu"), 1 << 34, kernel(), "cpu", Store(folder / "near")), transport


@pytest.mark.parametrize("kind", ASKED, ids=lambda kind: kind.__name__)
def test_every_question_travels_and_has_one_record_for_its_answer(kind: type[EvaluationQuestion]) -> None:
    question = example(kind)
    job = Job(question=question, asker="a", facts=device.facts("cpu"), memory_bytes=1, session=None)
    assert Job.model_validate_json(job.model_dump_json()) == job
    assert issubclass(kind.record(), BaseModel)
    assert bool(question.key) == bool(kind.kept_as)
    assert all(isinstance(name, str) for name in (*question.key, *question.candidates, *question.attachments))


@pytest.mark.parametrize("kind", [kind for kind in ASKED if kind.kept_as], ids=lambda kind: kind.__name__)
def test_no_answer_is_taken_for_one_to_another_question(kind: type[EvaluationQuestion]) -> None:
    """But for how long a search may take, and what a verdict says besides."""
    question = example(kind)
    others = {
        "build": BUILD.model_copy(update={"candidate": "other"}), "candidate": "other", "baseline": "other", "incumbent": "other",
        "probe": "other", "held_out": False, "only": SMALL, "contests": 3, "again": False, "count": 3,
    }  # fmt: skip
    names = set(kind.model_fields) - {"seconds", "verdict"}
    keys = {question.key, *(question.model_copy(update={name: others[name]}).key for name in names)}
    assert len(keys) == 1 + len(names)


def test_a_question_that_is_none_is_refused() -> None:
    job = Job(question=example(ASKED[0]), asker="a", facts=device.facts("cpu"), memory_bytes=1, session=None)
    with pytest.raises(ValueError, match="there is no question 'Harm'"):
        Job.model_validate_json(job.model_dump_json().replace(f'"{ASKED[0].__name__}"', '"Harm"'))


@pytest.mark.parametrize("kind", ASKED, ids=lambda kind: kind.__name__)
def test_a_worker_that_dies_of_it_is_an_answer_or_our_failure(kind: type[EvaluationQuestion], tmp_path: Path) -> None:
    with Evaluator(kernel(), "cpu", Store(tmp_path)) as session:
        source = session.store.put("#define SIZE 1  // tune: 1 2\n")
        question = example(kind)
        question = question.model_copy(update={"candidate": source} if "candidate" in kind.model_fields else {})
        try:
            answer = question.answer_after_crashes(session, "its worker died")
        except RuntimeError as fault:
            assert "its worker died" in str(fault)
        else:
            assert isinstance(answer, kind.record()) and "its worker died" in answer.model_dump_json()


# --- a new one: this class is all that is written ------------------------------------------------------------------------


class Symbols(Frozen):
    names: tuple[str, ...]
    artefact: str


class ListSymbols(AboutBuild[Symbols]):
    kept_as = "symbols"
    prefix: str

    @property
    def key(self) -> tuple[str, ...]:
        return "symbols", self.build.candidate, self.prefix

    def answer(self, session: EvaluationSession) -> Symbols:
        found = [name for name in session.spec.entry_names("float32") if name.startswith(self.prefix)]
        return Symbols(names=tuple(found), artefact=self.build.artefact)


@needs_compiler
def test_a_new_question_is_asked_here_and_elsewhere_and_kept(tmp_path: Path) -> None:
    there, transport = remote(tmp_path)
    for one in (Evaluator(kernel(), "cpu", Store(tmp_path / "here")), there):
        with one:
            build = one.build(one.store.put(one.kernel.baseline("cpu")[1].read_text()))
            question = ListSymbols(build=build, prefix="silu")
            first = one.ask(question)
            assert first.names and Path(first.artefact).is_relative_to(tmp_path / ("far" if one is there else "here"))
            assert one.ask(question) == first
            assert one.store.find_record("symbols", one.key(*question.key), Symbols) == first
    assert transport.asked.count("listsymbols") == 1


@needs_compiler
def test_whom_it_takes_down_twice_is_judged_without_an_answer_of_its_own(tmp_path: Path) -> None:
    there, _ = remote(tmp_path, died=True)
    with there:
        build = there.build(there.store.put(there.kernel.baseline("cpu")[1].read_text()))
        verdict = there.verify(build)
        assert (verdict.outcome, verdict.build) == (Outcome.RUNTIME_ERROR, build) and "died 2 times" in verdict.reason
        with pytest.raises(RuntimeError, match="ListSymbols: its worker died 2 times"):
            there.ask(ListSymbols(build=build, prefix=""))


@needs_compiler
def test_a_build_is_read_once_for_the_questions_about_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(near_side, "PACKED", 1)
    read: list[str] = []
    bundle = jobs.bundle_build
    monkeypatch.setattr(jobs, "bundle_build", lambda key, build: read.append(build.candidate) or bundle(key, build))
    there, _ = remote(tmp_path)
    with there:
        text = there.kernel.baseline("cpu")[1].read_text()
        one, other = (there.build(there.store.put(f"{text}// {number}\n")) for number in range(2))
        for build in (one, one, other, one):
            assert there.ask(ListSymbols(build=build, prefix="silu" * len(read))) is not None
    assert read.count(one.candidate) == 2 and read.count(other.candidate) == 1  # with room for those of one question


@needs_compiler
def test_a_source_that_does_not_compile_takes_no_device(tmp_path: Path) -> None:
    there, transport = remote(tmp_path)
    with there:
        verdict = there.verify(there.build(there.store.put("int broken( {\n")))
    assert verdict.outcome is Outcome.COMPILE_ERROR and set(transport.asked) == {"checktoolchain", "compile"}


# --- a third toolchain: this file is all that is written -----------------------------------------------------------------

TOOLCHAIN = """
from harness.backends import cpu

SUFFIX, DEVICE, FLAGS = ".cpp", "cpu", cpu.FLAGS


def takes(text):
    return text.startswith("// mine")


def why_unavailable():
    return cpu.why_unavailable()


def identity(facts):
    return f"mine, {cpu.identity(facts)}"


def compile(source, artefact, facts, timeout_s, flags=()):
    return cpu.compile(source, artefact, facts, timeout_s, flags=("-DMINE", *flags))
"""


@needs_compiler
def test_a_third_toolchain_is_one_file_here_and_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "backends"
    folder.mkdir()
    (folder / "clang.py").write_text(TOOLCHAIN)
    monkeypatch.setattr(backends, "__path__", [*backends.__path__, str(folder)])
    there, transport = remote(tmp_path)
    try:
        for one in (Evaluator(kernel(), "cpu", Store(tmp_path / "here")), there):
            with one:
                text = f"// mine\n#ifndef MINE\n#error\n#endif\n{one.kernel.baseline('cpu')[1].read_text()}"
                build = one.build(one.store.put(text))
                assert (build.backend, build.ok) == ("clang", True), build.log
                assert one.measured["build, clang"].startswith("mine, ") and one.verify(build).passed
    finally:
        sys.modules.pop("harness.backends.clang", None)
    assert {"checktoolchain", "compile", "verify"} <= set(transport.asked)
