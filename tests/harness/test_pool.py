"""Which processes stay, which go, and whose fault it is that a GPU's memory is gone. Their insides are test_process's."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.device import DeviceError
from harness.judge import own_libraries, pool
from harness.judge.pool import Pool
from harness.judge.rules import KernelRules
from harness.problems import compiled_reference
from harness.problems.box import COMPILING
from harness.processes.worker import LIMITS, Worker, WorkerFailure
from harness.records import Build, Outcome
from harness.store import digest
from harness.timing.interleaved import ArmFailure
from kernels import catalog

GIB = 1 << 30


SESSION: Any = SimpleNamespace(kernel=catalog.load("silu_and_mul"))


class Process(Worker):
    """A worker without a process: what the pool does to it is noted, and what it asks of a worker's class is there."""

    alive = True  # type: ignore[assignment]  # a worker's is a property

    def __init__(self, **started: Any) -> None:
        self.started, self.said, self.closed = started, list[Any](), False

    def unmap(self, arena: Any) -> None:
        self.said.append(("unmap", arena.id))

    def kill(self) -> None:
        self.alive = False
        self.said.append("kill")

    def close(self) -> None:
        assert not self.closed, "ended twice"
        self.alive, self.closed = False, True
        self.said.append("close")


class Paper(Pool):
    """Starts such processes, on a device that has the memory a test says."""

    def __init__(self, on: str = "cpu", **more: Any) -> None:
        how = {
            "dtypes": ("float32",),
            "rules": KernelRules(SESSION),
            "company": lambda: None,
            "least": lambda: 0,
            "ahead": lambda _build: None,
        }
        super().__init__(catalog.load("silu_and_mul"), on, **{**how, "look": lambda _worker: None, **more})
        self.begun: list[str] = []

    def start(self, build: Build) -> Process:
        self.begun.append(build.candidate)
        return Process()


def build(name: str) -> Build:
    return Build(candidate=name, backend="cpu", ok=True, artefact="a.so")


def died(process: Process) -> None:
    process.alive = False
    process.said.append("died")


def test_a_process_that_lives_is_not_started_again_and_one_that_died_is() -> None:
    with_one = Paper()
    first = with_one.get(build("a"))
    assert with_one.get(build("a")) is first and with_one.begun == ["a"]
    died(first)
    second = with_one.get(build("a"))
    with_one.settle()
    assert first.closed, "what is left of it is let go"
    assert second is not first and with_one.get(build("a")) is second and with_one.begun == ["a", "a"]
    with_one.drop("a")
    with_one.drop("a")
    assert not second.alive and with_one.get(build("a")) is not second


def test_processes_that_are_missing_start_side_by_side_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for the other here; who fails is left for `get`, which says why."""
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (80, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 0)
    one, both = Paper("cuda"), threading.Barrier(2, timeout=20)

    def start(build: Build) -> Process:
        one.begun.append(build.candidate)
        both.wait()
        if build.candidate == "b":
            raise WorkerFailure(Outcome.RUNTIME_ERROR, "no context")
        return Process()

    lives = one.get(build("c"))
    monkeypatch.setattr(one, "start", start)
    one.begin([build(name) for name in "abc"])
    assert sorted(one.begun) == ["a", "b", "c"] and one.get(build("c")) is lives
    assert one.get(build("a")).alive and len(one.begun) == 3
    both.reset()
    monkeypatch.setattr(both, "wait", lambda: None)
    with pytest.raises(WorkerFailure, match="no context"):
        one.get(build("b"))
    one.begin([build("b")])
    assert len(one.begun) == 4, "one alone is what `get` starts"


def test_processes_that_go_do_so_at_once_and_are_waited_for_before_anything_is_timed() -> None:
    order: list[tuple[str, str]] = []

    class Slow(Process):
        def __init__(self, name: str) -> None:
            super().__init__()
            self.name = name

        def kill(self) -> None:
            order.append(("kill", self.name))  # it takes a while

        def close(self) -> None:
            order.append(("close", self.name))
            super().close()

    one = Paper()
    one.start = lambda build: Slow(build.candidate)  # type: ignore[method-assign, assignment]
    for name in "ab":
        one.get(build(name))
    one.end(one.start(build("c")))
    one.drop("a")
    one.drop("b")
    assert order == [("kill", "c"), ("kill", "a"), ("kill", "b")]
    one.settle()
    assert sorted(order[3:]) == [("close", "a"), ("close", "b"), ("close", "c")]
    one.settle()
    assert len(order) == 6


def test_what_has_ended_is_let_go_even_where_nothing_is_timed() -> None:
    one = Paper()
    ended = [one.get(build(str(n))) for n in range(5)]
    for n in range(5):
        one.drop(str(n))
    assert [process.closed for process in ended] == [True] * 4 + [False]
    one.settle()
    assert all(process.closed for process in ended)


def test_before_anything_is_judged_who_was_judged_before_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_libraries, "OwnWorker", Process)
    one = Paper()
    ours = [one.ours(name, Path(__file__), {}) for name in ("neighbours", "light")]
    found = {name: one.get(build(name)) for name in ("baseline", "incumbent", "before", "now")}
    one.match("now", ["baseline", "incumbent"])
    assert [name for name, process in found.items() if not process.alive] == ["before"]
    one.only("next")
    assert [name for name, process in found.items() if not process.alive] == ["before", "now"]
    one.match("", [])
    assert not any(process.alive for process in found.values()) and all(process.alive for process in ours)


LIGHT, OTHER = Path(__file__), Path(pool.__file__)


def test_a_library_of_ours_has_one_process_until_that_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_libraries, "OwnWorker", Process)
    one = Paper(company=lambda: "company.so")
    first: Any = one.ours("light", LIGHT, {"a": ("a",)})
    assert first.started == {"device": "cpu", "artefact": LIGHT, "symbols": {"a": ("a",)}, "company": "company.so"}
    assert one.ours("light", LIGHT, {}) is first
    died(first)
    assert one.ours("light", LIGHT, {}) is not first
    one.settle()
    assert first.closed
    last: Any = one.ours("light", LIGHT, {})
    one.close()
    assert last.closed and Paper().ours("light", LIGHT, {}) is not last


def test_on_a_gpu_libraries_of_ours_share_a_process_that_the_next_pool_goes_on_with(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[Any] = []

    class Sibling(Process):
        def __init__(self, first: Any, artefact: Path, _symbols: Any) -> None:
            super().__init__(artefact=artefact)
            begun.append(("beside", first, artefact))

    def start(**how: Any) -> Process:
        begun.append(("started", how["artefact"]))
        return Process(**how)

    monkeypatch.setattr(own_libraries, "OwnWorker", start)
    monkeypatch.setattr(own_libraries, "SiblingWorker", Sibling)
    monkeypatch.setattr(own_libraries, "_idle", [])
    one = Paper("cuda")
    one._arena = SimpleNamespace(id=7, close=lambda: None)  # type: ignore[assignment]
    pair, light = one.ours("neighbours", OTHER, {}), one.ours("light", LIGHT, {})
    assert begun == [("started", OTHER), ("beside", pair, LIGHT)]
    one.close()
    assert pair.alive and pair.said == light.said == [("unmap", 7)]  # type: ignore[attr-defined]
    two, three = Paper("cuda"), Paper("cuda")
    assert two.ours("light", LIGHT, {}) is light and two.ours("neighbours", OTHER, {}) is pair
    other: Any = three.ours("light", LIGHT, {})
    assert other is not light and begun[2:] == [("started", LIGHT)], "each pool has its own meanwhile"
    died(light)  # type: ignore[arg-type]
    two.close()
    assert not pair.alive and not light.alive, "a process that has died is nobody's"
    three.close()
    assert Paper("cuda").ours("light", OTHER, {}) is not other, "another library under that name"


def real(monkeypatch: pytest.MonkeyPatch, **more: Any) -> Pool:
    """A pool that starts as the real one does, but nothing of substance."""
    for name in ("Worker", "PythonWorker"):
        monkeypatch.setattr(pool, name, lambda *given, name=name, **how: Process(name=name, given=given, **how))
    monkeypatch.setattr(pool, "get_fork_server", lambda device, **how: (device, how))
    how = {
        "dtypes": ("float32",),
        "rules": KernelRules(SESSION),
        "company": lambda: "company.so",
        "least": lambda: 0,
        "ahead": lambda _build: None,
    }
    return Pool(catalog.load("silu_and_mul"), "cpu", **{**how, "look": lambda _worker: None, **more})  # type: ignore[arg-type]


def test_a_native_candidate_is_started_with_its_entries_and_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Any] = []
    one = real(monkeypatch, look=looked.append)
    worker = one.start(build("a"))
    assert looked == [worker]
    assert worker.started == {
        "name": "Worker", "given": (), "device": "cpu", "artefact": Path("a.so"), "company": "company.so",
        "symbols": {"float32": one.spec.entry_names("float32")},
    }  # fmt: skip

    def refuse(_worker: Any) -> None:
        raise ValueError("no box")

    with pytest.raises(ValueError, match="no box"):
        real(monkeypatch, look=refuse).start(build("a"))


def test_candidates_in_python_are_forked_from_the_process_that_all_share(monkeypatch: pytest.MonkeyPatch) -> None:
    one = real(monkeypatch)
    candidate = build("a").model_copy(update={"backend": "python_module"})
    worker = one.start(candidate)
    given, how = worker.started.pop("given"), worker.started
    assert given == (("cpu", {"libraries": False}), one.spec, "python_module")
    assert how == {
        "name": "PythonWorker", "device": "cpu", "artefact": Path("a.so"), "dtypes": ("float32",), "company": "company.so",
        "limits": LIMITS, "compilers": False, "ours": False, "patience_s": 0.0,
    }  # fmt: skip
    compiling = one.start(candidate, compilers=True).started
    assert compiling["compilers"] and compiling["limits"] == COMPILING


def test_a_compiled_reference_has_libraries_compilers_and_a_fork_server_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = real(monkeypatch)
    compiled = digest(compiled_reference.source(SESSION.kernel, "compile"))
    ours, theirs = (one.start(build(name).model_copy(update={"backend": "python_module"})) for name in (compiled, "a"))
    assert ours.started["ours"] and ours.started["limits"] == COMPILING and not theirs.started["ours"]
    assert ours.started["compilers"] and ours.started["patience_s"] > 0
    assert [worker.started["given"][0][1]["libraries"] for worker in (ours, theirs)] == [True, False]


def test_what_has_to_be_done_first_is_done_before_a_process_that_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[str] = []
    begun = {"ahead": lambda build: told.append(build.candidate), "look": lambda _worker: told.append("begun")}
    one = real(monkeypatch, **begun)
    one.start(build("a"))
    one.start(build("b"), compilers=True)
    assert told == ["a", "begun", "begun"]


def test_a_candidate_of_a_problem_is_started_by_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    class Own(KernelRules):
        def start(self, build: Build, **how: Any) -> Any:
            return Process(given=build.candidate, **how) if build.backend == "model_new" else None

    one = real(monkeypatch, rules=Own(SESSION))
    worker = one.start(build("a").model_copy(update={"backend": "model_new"}))
    assert worker.started == {"given": "a", "company": "company.so", "compilers": False}
    assert one.start(build("a")).started["name"] == "Worker", "its native candidates are as others are"


def test_a_larger_arena_takes_the_place_of_the_one_that_all_have_mapped() -> None:
    one = Paper(least=lambda: 70 << 20)
    living, dead, rude = (one.get(build(name)) for name in "abc")
    died(dead)

    def refuse(_arena: Any) -> None:
        raise WorkerFailure(Outcome.TIMEOUT, "no answer")

    rude.unmap = refuse  # nothing that whoever is judged now had done
    first = one.make_buffers(8)
    assert first.size == 70 << 20 and one.make_buffers(70 << 20) is first and living.said == []
    second = one.make_buffers((70 << 20) + 1)
    assert second is not first and second.size == (70 << 20) + 1
    assert living.said == [("unmap", first.id)] and dead.said == ["died"]
    assert one.make_buffers(8) is second
    one.close()
    small = Paper()
    assert small.make_buffers(8).size == pool.ARENA_BYTES
    small.close()


def test_a_process_that_nobody_keeps_here_lets_go_of_the_arena_and_is_ended_at_the_latest_with_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = real(monkeypatch)
    worker = one.start(build("a"))
    first = one.make_buffers(8)
    one.make_buffers(first.size + 1)
    assert worker.said == [("unmap", first.id)]
    one.close()
    assert worker.closed


def test_closing_ends_everything_and_may_be_done_twice() -> None:
    one = Paper()
    process = one.get(build("a"))
    before = one.make_buffers(8)
    one.close()
    one.close()
    assert not process.alive and one.make_buffers(8) is not before
    one.close()


@pytest.mark.parametrize(
    "fault", [RuntimeError("CUDA"), DeviceError("cudaMalloc"), WorkerFailure(Outcome.TIMEOUT, "20 s")]
)
def test_what_fails_while_nobody_took_memory_stays_what_it_is(fault: Exception) -> None:
    one = Paper()
    one.get(build("a"))
    with pytest.raises(type(fault)) as met, one.guarding_memory("a"):
        raise fault
    assert met.value is fault


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    ("left", "others", "accused"),
    [(4 * GIB, 0, False), (4 * GIB - 1, 0, True), (0, 0, True), (2 * GIB, 5 * GIB, False), (0, 3 * GIB, True)],
)
def test_who_takes_more_than_half_of_a_gpus_memory_is_accused_whatever_failed(
    monkeypatch: pytest.MonkeyPatch, left: int, others: int, accused: bool, fails: bool
) -> None:
    """others: bytes that are still taken when the candidate's process has ended."""
    free = ended = 8 * GIB
    monkeypatch.setattr(Paper, "_memory_available", lambda self: free if self._lives("a") else ended)
    monkeypatch.setattr(Paper, "_short_of_memory", lambda _self: False)
    one = Paper("cuda")
    one.get(build("a"))
    other = one.get(build("gone"))
    free, ended = left, ended - others
    fault = WorkerFailure(Outcome.RUNTIME_ERROR, "out of memory")

    def work() -> None:
        if fails:
            raise fault

    if accused:
        said = r"its process took [48] GiB of the 8 GiB of GPU memory"
        with pytest.raises(ArmFailure, match=said) as met, one.guarding_memory("a"):
            work()
        assert (met.value.arm, met.value.outcome) == ("candidate", Outcome.OUT_OF_RESOURCES)
        assert met.value.__cause__ is (fault if fails else None)
    elif fails:
        with pytest.raises(WorkerFailure, match="out of memory"), one.guarding_memory("a"):
            work()
    else:
        with one.guarding_memory("a"):
            work()
    died(other)
    with one.guarding_memory("gone"), one.guarding_memory("never started"):
        pass  # what has no process holds no memory


def test_a_gpus_memory_is_what_is_free_and_what_is_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (25, 100))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda: 300)
    monkeypatch.setattr(type(catalog.load("silu_and_mul")), "gpu_bytes", lambda _self: 4000)
    one = Paper("cuda")
    assert one._memory_available() == 4325
    one._arena = type("Held", (), {"size": 50_000})()
    assert one._memory_available() == 54_325
    assert not one._short_of_memory()
    found = [one.get(build(str(n))) for n in range(3)]
    assert all(process.alive for process in found)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (24, 100))
    assert one._short_of_memory()
    one.get(build("next"))
    assert all(process.closed for process in found), "a quarter is free at least before the next begins"
    assert not Paper("cpu")._short_of_memory() and Paper("cpu")._memory_available() == 0
