"""What every run needs alike is made once a machine, and by each run where nothing can be kept."""

from __future__ import annotations

import platform
import pwd
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from harness import device, machine
from harness.evaluate import Evaluator, begin_first_builds
from harness.jobs import EvaluationServer, Job, JobAnswer
from harness.questions import CheckToolchain
from harness.records import Build, DeviceFacts
from harness.remote import RemoteEvaluator
from harness.store import Store
from harness.timing import speed_of_light
from kernels import catalog


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def make(into: Path) -> Build:
    with (into.parent / "made").open("a") as made:
        made.write("once ")
    (into / "candidate.so").write_text("bytes")
    return Build(candidate="mine", backend="cpu", ok=True, artefact=str(into / "candidate.so"))


def built(into: str) -> str:
    folder = Path(into)
    folder.mkdir()
    return machine.get_build("key", folder, make).artefact


def test_who_builds_side_by_side_builds_once_and_each_has_its_own_copy(cache: Path, tmp_path: Path) -> None:
    folders = [str(tmp_path / str(number)) for number in range(4)]
    with ThreadPoolExecutor(
        4
    ) as pool:  # a lock of a file that each has opened by itself keeps threads apart as processes
        artefacts = list(pool.map(built, folders))
    assert artefacts == [f"{folder}/candidate.so" for folder in folders]
    assert {Path(one).read_text() for one in artefacts} == {"bytes"}
    assert (cache / "runs" / "builds" / "made").read_text() == "once "


def test_what_is_gone_or_did_not_compile_is_made_again(cache: Path, tmp_path: Path) -> None:
    built(str(tmp_path / "first"))
    (cache / "runs" / "builds" / "key" / "candidate.so").unlink()
    assert Path(built(str(tmp_path / "second"))).read_text() == "bytes"
    broken = Build(candidate="mine", backend="cpu", ok=False, log="error: no space")
    for _ in range(2):
        assert machine.get_build("other", tmp_path, lambda _: broken) is broken


def test_who_can_keep_nothing_makes_it_where_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "file"))
    assert machine.store() is None
    assert built(str(tmp_path / "one")) == str(tmp_path / "one" / "candidate.so")


def test_who_has_no_home_can_keep_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ASTROLABE_CACHE", "XDG_CACHE_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, "getpwuid", lambda _uid: {}["nobody by that number"])
    assert machine.store() is None


def test_what_a_run_asks_for_first_is_built_before_there_is_its_evaluator(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By facts that know no more of the device than builds depend on."""
    known = device.facts("cpu")
    bare = DeviceFacts(
        device="cpu", name=known.name, architecture=known.architecture, units=0, last_level_cache_bytes=0
    )
    begin_first_builds("silu_and_mul", "", lambda: bare).join()
    begin_first_builds("no such kernel", "", lambda: bare).join()
    kernel = catalog.load("silu_and_mul")
    with Evaluator(kernel, "cpu", Store(tmp_path / "run")) as evaluator:
        monkeypatch.setattr(evaluator, "compile_into", lambda *_: pytest.fail("compiled"))
        baseline = evaluator.store.put(kernel.baseline("cpu")[1].read_text())
        assert all(evaluator.build(one).ok for one in (baseline, *evaluator.harness_sources))


def test_runs_share_the_builds_of_our_sources_and_of_no_candidate(cache: Path, tmp_path: Path) -> None:
    kernel = catalog.load("silu_and_mul")
    text = f"{kernel.baseline('cpu')[1].read_text()}// a candidate\n"
    for folder in ("first", "second"):
        with Evaluator(kernel, "cpu", Store(tmp_path / folder), dtypes=("float32",)) as evaluator:
            ours, theirs = (evaluator.store.put(one) for one in (speed_of_light.source("cpu").read_text(), text))
            builds = [evaluator.build(one) for one in (ours, theirs)]
            assert all(Path(build.artefact).is_relative_to(tmp_path / folder) for build in builds)
    kept = [path.name for path in (cache / "runs" / "records" / "build").iterdir()]
    assert kept == [f"{evaluator.build_key(ours, evaluator.backend(ours))}.json"]


class Across:
    """An errand whose far side is a Bench here; remembers what was asked."""

    def __init__(self, folder: Path) -> None:
        self.bench, self.asked = EvaluationServer(folder), list[str]()

    def ask(self, job: Job, contents: dict[str, bytes], say, began) -> JobAnswer:
        if not isinstance(job.question, CheckToolchain):
            self.asked.append(f"{job.kind} {' '.join(job.question.candidates)}")
        return self.bench.answer(job, contents, say)

    def width(self) -> int:
        return 1

    def release(self, names: set[str], asker: str) -> None:
        pass


def test_runs_on_a_cluster_share_them_too(cache: Path, tmp_path: Path) -> None:
    """A second and more of every problem of a campaign, else."""
    kernel, errand = catalog.load("silu_and_mul"), Across(tmp_path / "far")
    for folder in ("first", "second"):
        with RemoteEvaluator(
            errand, device.facts("cpu"), 1 << 34, kernel, "cpu", Store(tmp_path / folder), dtypes=("float32",)
        ) as asking:
            ours, _ = asking.beside()
            assert Path(asking.build(ours).artefact).is_relative_to(tmp_path / folder)
    assert errand.asked == [f"compile {ours}"]


FREES = """
import resource, threading
from harness.machine import keep_freed_memory
keep_freed_memory()
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
def work():
    len(b"x" * (64 << 20))
    before = faults()
    for _ in range(4):
        len(b"x" * (64 << 20))
    print(faults() - before)
work()
thread = threading.Thread(target=work)
thread.start()
thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="what malloc gives back is glibc's to choose")
def test_what_was_freed_is_used_again_in_every_thread() -> None:
    """Of 64 MiB that are given back each page is a fault: 65,536 in four turns."""
    told = subprocess.run(
        [sys.executable, "-c", FREES], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[2]
    ).stdout
    assert len(told.split()) == 2 and all(int(faults) < 5000 for faults in told.split()), told


def test_a_build_that_is_a_folder_is_shared_like_a_file(cache: Path, tmp_path: Path) -> None:
    def make_module(into: Path) -> Build:
        (into / "candidate").mkdir(exist_ok=True)
        (into / "candidate" / "candidate.py").write_text("x = 1\n")
        return Build(
            candidate="0" * 64, backend="python_module", ok=True, artefact=str(into / "candidate"), log="", seconds=0.0
        )

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for _ in range(2):
            made = machine.get_build("module", tmp_path / name, make_module)
            assert Path(made.artefact) == tmp_path / name / "candidate"
            assert (tmp_path / name / "candidate" / "candidate.py").read_text() == "x = 1\n"
