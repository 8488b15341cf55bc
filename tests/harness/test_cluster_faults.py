"""A cluster whose parts are killed, stopped, cut off and filled up, for real: the answers are those of one process."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("distributed")

from harness import engines
from harness.engines import EngineChoice
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from kernels.spec import Workload

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
REPOSITORY = Path(__file__).resolve().parents[2]
SLOW_TO_BUILD = '#include <regex>\nstatic std::regex a("x"), b("y");\n' + "".join(
    f"template <int N> struct S{n} {{ static constexpr int v = S{n}<N - 1>::v + 1; }};\n"
    f"template <> struct S{n}<0> {{ static constexpr int v = 0; }};\nint v{n} = S{n}<800>::v;\n"
    for n in range(12)
)
"""Seconds of g++."""


@pytest.fixture(scope="module")
def small():
    kernel = catalog.load("silu_and_mul")
    workloads = (
        Workload(axes={"tokens": 3, "hidden": 129}, dtype="float32", timed=False),
        Workload(axes={"tokens": 8, "hidden": 512}, dtype="float32"),
    )
    return replace(kernel, spec=kernel.spec.model_copy(update={"workloads": workloads, "dtypes": ("float32",)}))


@pytest.fixture(scope="module")
def source(small) -> str:
    return small.baseline("cpu")[1].read_text()


@contextlib.contextmanager
def opened(**more: str) -> Iterator[engines.Engine]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL", "6s")
        for name, value in {"CONTEST_S": "0", **more}.items():
            patch.setenv(f"ASTROLABE_CLUSTER_{name}", value)
        made = engines.open_engine(engines.choice("dask:2"), "cpu")
        try:
            yield made
        finally:
            made.close()


@pytest.fixture(scope="module")
def shared() -> Iterator[engines.Engine]:
    if len(os.sched_getaffinity(0)) < 2:
        pytest.skip("two workers need two cores")
    with opened() as made:
        yield made


@pytest.fixture
def cluster(shared) -> engines.Engine:
    """With both of its workers there."""
    until(lambda: shared.width() == 2)
    return shared


def until(true: Callable[[], object], seconds: float = 120) -> None:
    late = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < late, "it did not come to that"
        time.sleep(0.05)


class Strike:
    """A `say` that does something to the worker that speaks, the first `times` times that its words hold `word`."""

    def __init__(self, engine, word: str, blow: Callable[[int], None], times: int = 1) -> None:
        self.cluster, self.word, self.blow, self.left = engine.cluster, word, blow, times
        self.struck: list[int] = []

    def __call__(self, text: str) -> None:
        if self.word not in text or not self.left:
            return
        place = text[text.rindex("(") + 1 : -1]
        late = time.monotonic() + 30
        while time.monotonic() < late:  # a worker that was started again is known by its number a second later
            for status in self.cluster.seen:
                if status.place == place and status.pid not in self.struck and status.doing:
                    self.left -= 1
                    self.struck.append(status.pid)
                    with contextlib.suppress(ProcessLookupError):
                        self.blow(status.pid)
                    return
            time.sleep(0.05)


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def asleep(source: str) -> str:
    """A candidate each of whose calls takes half a second: twenty at once fit into the time that a request has."""
    return "#include <unistd.h>\n" + source.replace("const T* gate", "if (token == 0) usleep(500000); const T* gate", 1)


def test_a_worker_killed_while_it_times(cluster, small, source, tmp_path):
    with cluster.evaluator(small, Store(tmp_path)) as evaluator:
        baseline = evaluator.verify(evaluator.build(evaluator.store.put(source)))
        strike = evaluator.say = Strike(cluster, "timing", kill)
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(source + "\n//\n")))
        verdict = evaluator.measure(verdict, baseline=baseline.candidate)
        assert verdict.passed and verdict.timings, verdict.reason
    assert len(strike.struck) == 1
    until(lambda: cluster.width() == 2)


def test_a_candidate_that_takes_its_worker_down_twice_is_recorded_and_not_tried_for_ever(
    cluster, small, source, tmp_path
):
    text = asleep(source)
    with cluster.evaluator(small, Store(tmp_path)) as evaluator:
        strike = evaluator.say = Strike(cluster, "checking", kill, times=9)
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
        assert verdict.outcome is Outcome.RUNTIME_ERROR and "died 2 times" in verdict.reason
        assert len(strike.struck) == 2
    said: list[str] = []
    with cluster.evaluator(small, Store(tmp_path), say=said.append) as again:
        assert again.verify(again.build(again.store.put(text))) == verdict and not said


def test_a_worker_that_hangs_and_comes_back(cluster, small, source, tmp_path):
    """Stopped, it answers nothing, as behind a network that is cut; once it goes on it joins anew."""
    with cluster.evaluator(small, Store(tmp_path)) as evaluator:
        strike = evaluator.say = Strike(cluster, "checking", lambda pid: os.kill(pid, signal.SIGSTOP))
        try:
            verdict = evaluator.verify(evaluator.build(evaluator.store.put(asleep(source))))
        finally:
            for pid in strike.struck:
                os.kill(pid, signal.SIGCONT)
        assert verdict.passed, verdict.reason
    assert len(strike.struck) == 1
    until(lambda: cluster.width() == 2 and strike.struck[0] not in {one.pid for one in cluster.cluster.seen})


def test_the_scheduler_restarted(cluster, small, source, tmp_path):
    said: list[str] = []
    cluster.say = said.append
    before = cluster.cluster.local.scheduler.pid
    with cluster.evaluator(small, Store(tmp_path)) as evaluator:
        build = evaluator.build(evaluator.store.put(asleep(source)))
        evaluator.say = Strike(cluster, "checking", lambda _pid: kill(before))
        verdict = evaluator.verify(build)
        assert verdict.passed, verdict.reason
        assert evaluator.verify(evaluator.build(evaluator.store.put(source))).passed
    assert cluster.cluster.local.scheduler.pid != before
    assert any("scheduler had ended and is started again" in text for text in said), said
    until(lambda: cluster.width() == 2)


class Cut:
    """A port that passes everything on to another, until it is cut."""

    def __init__(self, port: int) -> None:
        self.to = port
        self.server = socket.create_server(("127.0.0.1", 0))
        self.port = self.server.getsockname()[1]
        self.open, self.pairs = True, []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                ours, _ = self.server.accept()
                if not self.open:
                    ours.close()
                    continue
                theirs = socket.create_connection(("127.0.0.1", self.to))
                self.pairs.append((ours, theirs))
                for pair in ((ours, theirs), (theirs, ours)):
                    threading.Thread(target=self._pass, args=pair, daemon=True).start()

    @staticmethod
    def _pass(one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        self.open = False
        for pair in self.pairs:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self.server.close()
        for pair in self.pairs:
            for end in pair:
                end.close()


def test_the_network_cut_and_back(cluster, small, source, tmp_path):
    local = cluster.cluster.local
    wire = Cut(int(local.address.rpartition(":")[2]))
    said: list[str] = []
    choice = EngineChoice(name="dask", address=f"tls://127.0.0.1:{wire.port}", tls=str(local.tls))
    far = engines.open_engine(choice, "cpu", said.append)
    try:
        with far.evaluator(small, Store(tmp_path)) as evaluator:
            build = evaluator.build(evaluator.store.put(asleep(source)))

            def blow(_pid: int) -> None:
                wire.cut()
                threading.Timer(3, lambda: setattr(wire, "open", True)).start()

            evaluator.say = Strike(far, "checking", blow)
            verdict = evaluator.verify(build)
            assert verdict.passed, verdict.reason
        assert any("connection to the cluster's scheduler is lost" in text for text in said), said
    finally:
        far.close()
        wire.close()


def test_a_job_that_says_nothing_for_too_long_ends_its_worker(small, source, tmp_path):
    with opened(STALL_S="0.5") as engine, engine.evaluator(small, Store(tmp_path)) as evaluator:
        build = evaluator.build(evaluator.store.put(SLOW_TO_BUILD + source))
        assert not build.ok and "died 2 times" in build.log


OPEN = """
import sys, time
from harness import engines
made = engines.open_engine(engines.choice("dask:2"), "cpu")
local = made.cluster.local
print(local.folder, local.scheduler.pid, local.supervisor.pid, *(one.pid for one in made.cluster.seen), flush=True)
time.sleep(600)
"""


def test_a_parent_that_is_killed_leaves_nothing(tmp_path):
    environment = os.environ | {"ASTROLABE_CLUSTER_CONTEST_S": "0", "TMPDIR": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", OPEN], cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE)
    folder, *pids = parent.stdout.readline().decode().split()
    assert len(pids) == 4
    parent.kill()
    parent.wait()
    parent.stdout.close()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))
    until(lambda: not Path(folder).exists())
