"""What is left of a candidate that failed: nothing, so that the next one's verdict is what it would have been."""

from __future__ import annotations

import gc
import os
import signal
import socket
import struct
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from harness import backends
from harness.evaluate import Evaluator
from harness.farside.sandbox import ProcessLimits, describe_box
from harness.judge import session
from harness.judge.session import CALL_S
from harness.processes import libraries, scratch
from harness.processes.forks import ADDR_NO_RANDOMIZE, get_native_server
from harness.processes.scratch import remove_tree
from harness.processes.worker import Worker
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from kernels.spec import Workload

HOW = {
    "crash": ("*static_cast<volatile int*>(nullptr) = 1;", Outcome.RUNTIME_ERROR),
    "exit": ("_exit(3);", Outcome.RUNTIME_ERROR),
    "threads": ("for (int i = 0; i < 8; ++i) std::thread([] { pause(); }).detach(); kill(getpid(), SIGKILL);", Outcome.RUNTIME_ERROR),
    "hang": ("for (;;) pause();", Outcome.TIMEOUT),
}  # fmt: skip
SOURCE = """
#include <csignal>
#include <cstdint>
#include <thread>
#include <unistd.h>
extern "C" void silu_and_mul_float32(const float*, float*, int64_t, int64_t) {{ {body} }}
"""


@pytest.fixture
def evaluator(tmp_path: Path):
    if reason := backends.get("cpu").why_unavailable():
        pytest.skip(reason)
    kernel = catalog.load("silu_and_mul")
    workloads = (Workload(axes={"tokens": 3, "hidden": 129}, dtype="float32"),)
    kernel = replace(kernel, spec=kernel.spec.model_copy(update={"workloads": workloads, "dtypes": ("float32",)}))
    with Evaluator(kernel, "cpu", Store(tmp_path)) as made:
        yield made


def watching() -> set[threading.Thread]:
    return {thread for thread in threading.enumerate() if thread.name.startswith("watchdog-")}


def held(others: set[threading.Thread]) -> dict[str, Any]:
    """Open files, children (the dead ones that nobody has waited for too), watching threads, scratch folders."""
    gc.collect()
    me, children = os.getpid(), 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            children += int(stat.read_text().rpartition(")")[2].split()[1]) == me
        except (FileNotFoundError, ProcessLookupError):
            continue
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "children": children,
        "watchdogs": len(watching() - others),
        "folders": len(list(Path(tempfile.gettempdir()).glob("astrolabe-*/worker-*"))),
    }


def settled(others: set[threading.Thread]) -> dict[str, Any]:
    """What is held once the last thread that was told to stop has stopped: on a busy machine that takes a moment."""
    deadline = time.monotonic() + 60
    while (now := held(others))["watchdogs"] and time.monotonic() < deadline:
        time.sleep(0.05)
    return now


def test_nothing_is_left_of_candidates_that_fail(
    evaluator: Evaluator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    builds = {how: evaluator.build(evaluator.store.put(SOURCE.format(body=body))) for how, (body, _) in HOW.items()}

    def judge_all(turn: int) -> None:
        for how, build in builds.items():
            evaluator.call_s = 0.3 if how == "hang" else CALL_S
            verdict = evaluator.verify(build.model_copy(update={"candidate": f"{how} {turn}"}))
            assert verdict.outcome is HOW[how][1], verdict.reason

    others = watching()  # of fixtures that outlive a test
    judge_all(0)  # brings the arena and the thread that starts workers
    before = settled(others)
    for turn in range(1, 4):
        judge_all(turn)
    assert settled(others) == before and before["folders"] == before["watchdogs"] == 0


def test_a_call_is_given_up_early_where_the_baseline_s_time_says_that_it_is_hopeless(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A candidate far below the roofline took 20 s of an H200 to be a TIMEOUT, beside a baseline of half a millisecond."""
    monkeypatch.setitem(session.FIRST_CALL_S, "cpu", 0.2)
    first = evaluator.suite()[0]
    assert evaluator.patience_s(first) == CALL_S, "nobody knows"
    monkeypatch.setattr(evaluator, "baseline_us", {first.label: 100.0})
    assert evaluator.patience_s(first) == pytest.approx(0.3)
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(SOURCE.format(body=HOW["hang"][0]))))
    assert verdict.outcome is Outcome.TIMEOUT and "where the baseline takes 100 us" in verdict.reason
    monkeypatch.setattr(evaluator, "baseline_us", {first.label: 1e9})
    assert evaluator.patience_s(first) == CALL_S


def test_the_same_binary_has_the_same_addresses_in_every_worker(evaluator: Evaluator) -> None:
    build = evaluator.build(evaluator.store.put(SOURCE.format(body="")))
    workers = [evaluator.pool.start(build), evaluator.pool.start(build)]
    try:
        if not int(Path(f"/proc/{workers[0].process.pid}/personality").read_text(), 16) & ADDR_NO_RANDOMIZE:
            pytest.skip("this machine refuses it")
        maps = [Path(f"/proc/{worker.process.pid}/maps").read_text().splitlines() for worker in workers]
    except PermissionError:
        pytest.skip("a boxed process is not to be looked at by this user")
    finally:
        for worker in workers:
            worker.close()
    libraries = [[line.split()[0] for line in lines if "libc.so" in line or "libm.so" in line] for lines in maps]
    assert libraries[0] and libraries[0] == libraries[1]


def test_what_a_process_has_mapped_is_looked_at_where_it_has_changed(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, looked = evaluator.pool.get(evaluator.build(evaluator.store.put(SOURCE.format(body="")))), []
    foreign, maps = libraries.foreign, ["one", "one", "two", "one"]
    monkeypatch.setattr(libraries, "read_maps", lambda _pid: maps.pop(0))
    monkeypatch.setattr(libraries, "foreign", lambda now, *_, **__: looked.append(now) or f"it runs {now}")
    assert [worker.foreign_code() for _ in range(4)] == ["it runs one", "it runs one", "it runs two", "it runs one"]
    assert looked == ["one", "two", "one"] and foreign("", frozenset(), frozenset(), gpu=False) == ""


def test_workers_and_commands_die_with_their_fork_server_and_the_next_ones_get_another(
    evaluator: Evaluator, tmp_path: Path
) -> None:
    build = evaluator.build(evaluator.store.put(SOURCE.format(body="")))
    worker, server = evaluator.pool.start(build), get_native_server()
    limits = ProcessLimits(memory_bytes=1 << 30)
    command = server.run(tmp_path, worker.log.fileno(), describe_box(str(tmp_path), [], limits), ["sleep", "60"])
    server.process.kill()
    server.process.wait()
    for ended in (worker.process, command):
        assert ended.wait(timeout=20) == -signal.SIGKILL
    worker.close()
    another = evaluator.pool.start(build)
    assert get_native_server() is not server and another.alive and another.found
    another.close()
    assert backends.run_boxed(["echo", "here"], tmp_path, [], 20.0) == (0, "here\n")


def test_nothing_is_left_of_a_worker_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_self: Worker, _theirs: Any) -> Any:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(Worker, "_start", refuse)
    scratch.folder("first").rmdir()  # they all lie in one, which stays
    before = held(set())
    with pytest.raises(BlockingIOError):
        Worker(device="cpu", artefact=tmp_path / "none.so", symbols={})
    assert held(set()) == before


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="needs two cores")
@pytest.mark.parametrize("beside", [0, 1], ids=["alone", "two"])
def test_threads_that_are_timed_have_a_core_each(evaluator: Evaluator, beside: int) -> None:
    """The first one, too, for where it wakes up is chance; alone it stays free, for what it starts inherits its cores."""
    cores = os.sched_getaffinity(0)
    start = "__attribute__((constructor)) static void team() { std::thread([] { for (;;) pause(); }).detach(); }\n"
    worker = evaluator.pool.start(evaluator.build(evaluator.store.put(SOURCE.format(body="") + beside * start)))
    try:
        tasks = sorted(map(int, os.listdir(f"/proc/{worker.process.pid}/task")))
        assert len(tasks) == 1 + beside
        worker.pin(True)
        apart = [os.sched_getaffinity(task) for task in tasks]
        assert apart == ([{core} for core in sorted(cores)[:2]] if beside else [cores])
        worker.pin(False)
        assert [os.sched_getaffinity(task) for task in tasks] == [cores] * len(tasks)
    finally:
        worker.close()


def stopped(pid: int) -> bool:
    """Whether all its threads are, once the last one has got so far."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        states = {path.read_text().rpartition(")")[2].split()[0] for path in Path(f"/proc/{pid}/task").glob("*/stat")}
        if states == {"T"}:
            return True
        time.sleep(0.01)
    return False


def test_a_process_runs_while_it_is_asked_and_is_stopped_else(evaluator: Evaluator) -> None:
    spin = "__attribute__((constructor)) static void team() { std::thread([] { for (;;); }).detach(); }\n"
    worker = evaluator.pool.start(evaluator.build(evaluator.store.put(SOURCE.format(body="") + spin)))
    try:
        assert stopped(worker.process.pid)
        assert worker.request({"op": "unmap", "id": 1}) == {}, "whoever is asked goes on"
        assert stopped(worker.process.pid)
    finally:
        worker.close()


def test_a_link_in_place_of_the_log_leads_nowhere(evaluator: Evaluator, tmp_path: Path) -> None:
    """What a candidate wrote last is told to the model; what a file holds that only we may read is not."""
    secret = tmp_path / "secret.txt"
    secret.write_text("the password is opensesame\n")
    body = f'unlink("output.txt"); if (!symlink("{secret}", "output.txt")) kill(getpid(), SIGKILL);'
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(SOURCE.format(body=body))))
    assert verdict.outcome is Outcome.RUNTIME_ERROR and "SIGKILL" in verdict.reason
    assert "opensesame" not in verdict.reason


@pytest.fixture
def pipe():
    """A worker that is nothing but our end of the channel, and the other end."""
    worker = object.__new__(Worker)
    worker.channel, far = socket.socketpair()
    yield worker, far
    worker.channel.close()
    far.close()


def answer(text: bytes) -> bytes:
    return struct.pack("<I", len(text)) + text


def test_an_answer_byte_by_byte_is_not_waited_for_any_longer_than_none(pipe: Any) -> None:
    worker, far = pipe
    far.sendall(struct.pack("<I", 1000))
    gone = threading.Event()

    def drip() -> None:
        while not gone.wait(0.02):
            far.sendall(b" ")

    dripping = threading.Thread(target=drip)
    dripping.start()
    try:
        with pytest.raises(TimeoutError):
            worker._answer(time.monotonic() + 0.3)
    finally:
        gone.set()
        dripping.join()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        (b"[" * 100_000, RecursionError),
        (b"[]", ValueError),
        (b"{", ValueError),
        (b"\xff\xfe", ValueError),
        (b'{"seconds": ' + b"1" * 5000 + b"}", ValueError),
    ],
    ids=["nested", "a list", "half", "no text", "a long number"],
)
def test_nonsense_is_an_error_that_a_request_makes_a_verdict_of(pipe: Any, text: bytes, error: type[Exception]) -> None:
    worker, far = pipe
    far.sendall(answer(text))
    with pytest.raises(error):
        worker._answer(time.monotonic() + 60)


def test_half_of_a_surrogate_pair_can_be_kept_as_something_else(pipe: Any) -> None:
    worker, far = pipe
    far.sendall(answer(b'{"error": "a\\ud800b", "more": ["\\uDC00", "\\ud83d\\ude00"]}'))
    found = worker._answer(time.monotonic() + 60)
    assert found == {"error": "a?b", "more": ["?", "\U0001f600"]}


def test_descriptors_that_come_with_an_answer_are_let_go(pipe: Any) -> None:
    worker, far = pipe
    before = len(os.listdir("/proc/self/fd"))
    socket.send_fds(far, [answer(b"{}")], [far.fileno()] * 8)
    assert worker._answer(time.monotonic() + 60) == {}
    assert len(os.listdir("/proc/self/fd")) == before


def test_who_was_asked_when_the_person_interrupted_is_no_more(
    evaluator: Evaluator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer would be taken for that to the next question."""
    worker = evaluator.pool.start(evaluator.build(evaluator.store.put(SOURCE.format(body=""))))

    def interrupted(*_late: float) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(worker, "_answer", interrupted)
    with pytest.raises(KeyboardInterrupt):
        worker.request({"op": "unmap", "id": 1})
    assert not worker.alive


def test_a_tree_that_is_too_deep_to_remove_one_folder_inside_the_other_is_removed(tmp_path: Path) -> None:
    top = tmp_path / "top"
    top.mkdir()
    at = os.open(top, os.O_RDONLY)
    for _ in range(1200):
        os.mkdir("a", dir_fd=at)
        below = os.open("a", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "file").write_text("")
    (top / "link").symlink_to(kept)
    remove_tree(top)
    assert not top.exists() and (kept / "file").exists()
    remove_tree(top)
    top.symlink_to(kept)
    remove_tree(top)
    assert not os.path.lexists(top) and (kept / "file").exists()


@pytest.mark.parametrize(("waited", "outcome"), [(0.0, Outcome.TIMEOUT), (1.0, Outcome.INCORRECT)])
def test_who_waited_for_a_core_has_more_time(
    evaluator: Evaluator, monkeypatch, waited: float, outcome: Outcome
) -> None:
    """A catalog baseline was a TIMEOUT beside eight other programs on two cores."""
    began = time.monotonic()
    monkeypatch.setattr(Worker, "waited_s", lambda _self: waited * (time.monotonic() - began))
    evaluator.call_s = 0.4  # its first call sleeps a second and writes nothing
    body = "std::this_thread::sleep_for(std::chrono::seconds(1));"
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(SOURCE.format(body=body))))
    assert verdict.outcome is outcome, verdict.reason


def test_the_time_for_which_threads_wait_is_bounded(evaluator: Evaluator, monkeypatch) -> None:
    began = time.monotonic()
    monkeypatch.setattr(Worker, "waited_s", lambda _self: time.monotonic() - began)
    evaluator.call_s = 0.1
    verdict = evaluator.verify(evaluator.build(evaluator.store.put(SOURCE.format(body=HOW["hang"][0]))))
    assert verdict.outcome is Outcome.TIMEOUT, verdict.reason
