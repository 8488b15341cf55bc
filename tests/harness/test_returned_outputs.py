"""What a Python candidate returns in timed calls on a GPU is poisoned, read and delivered in its place: the plan, on memory of this process."""

from __future__ import annotations

import ctypes
import socket
from collections.abc import Callable
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness.farside import python_worker
from harness.farside.python_worker import PythonRequestLoop

SLOTS, COUNT = 3, 20
FLOATS = ctypes.c_float * COUNT


class EmulatedCuda:
    """Graphs are lists of what is to be done; what a call does when it is run again is `Loop.capture`'s affair."""

    def __init__(self) -> None:
        self.streams = [None]
        self.rt = SimpleNamespace(cudaGetLastError=lambda: 0, cudaGraphExecDestroy=lambda _: 0)

    def capture(self, launch: Callable[[Any], Any]) -> list[Callable[[], Any]]:
        launch(None)
        return [lambda: launch(None)]

    def chain(self, graphs: list[list[Callable[[], Any]]], movable: bool) -> list[Callable[[], Any]]:
        return [step for graph in graphs for step in graph]

    def executable(self, graph: Any) -> Any:
        return graph

    def release(self, graph: Any) -> None:
        pass

    def settle(self, what: str) -> None:
        pass

    def copy(self, to: int, source: int, count: int) -> None:
        ctypes.memmove(to, source, count)


class Neighbours:
    """Writes NaN for poison; notes the sum of what the consumer of each call reads."""

    def __init__(self) -> None:
        self.read: list[float] = []

    def company_produce(self, _inputs: Any, poisoned: Any, *_: Any) -> None:
        FLOATS.from_address(poisoned._obj.piece[0].to)[:] = [float("nan")] * COUNT

    def company_consume(self, outputs: Any, *_: Any) -> None:
        self.read.append(sum(FLOATS.from_address(outputs._obj.piece[0].to)))


class Loop(PythonRequestLoop):
    """A candidate that doubles its input, whose calls are run again into the memory that they have returned."""

    def __init__(self, function: Callable[[torch.Tensor], torch.Tensor]) -> None:
        self.channel, other = socket.socketpair()
        other.close()
        super().__init__(self.channel)
        self.gpu, self.neighbours, self.cuda, self.torch = True, Neighbours(), EmulatedCuda(), torch  # type: ignore[assignment]
        self.memory = torch.arange(2.0 * SLOTS * COUNT)
        base = self.memory.data_ptr()
        self.arenas, self.sizes = {1: (base, None)}, {1: self.memory.nbytes}
        self.made: list[torch.Tensor] = []

        def call(given: torch.Tensor) -> torch.Tensor:
            self.made.append(function(given))
            return self.made[-1]

        signature = python_worker.forms.Signature(
            [["tensor", "x", "input", "", None], ["tensor", "out", "output", "", None]], "f"
        )
        self.form = python_worker.forms.CallAdapter(call, [0], signature.outputs)
        self.copier = self.form.copier
        self.tell_arguments()

    def stream(self, index: int) -> Any:
        return nullcontext()

    def tensor(self, address: int, dtype: torch.dtype, shape: list[int], strides: list[int]) -> torch.Tensor:
        return torch.frombuffer(FLOATS.from_address(address), dtype=torch.float32)

    def capture(self, launch: Callable[[Any], Any]) -> Any:
        launch(None)
        given, result = self.memory[COUNT * len(self.graphs) :][:COUNT], self.made[-1]
        self.graphs.append(result)
        return [lambda: torch.mul(given, 2, out=result)]

    def planned_answer(self, neighbour: int = 0, *, apart: bool = False) -> dict[str, Any]:
        def place(at: int) -> list[Any]:
            return [["p", 1, 4 * COUNT * at], ["p", 1, 4 * COUNT * (SLOTS + at)]]

        company = {
            "arena": 1, "apart": apart, "neighbour": neighbour, "steps": 1, "pieces": [], "evict": [0, 0, 0], "secrets": 0, "digests": 0, "never": 0,
            "poisoned": [[4 * COUNT * SLOTS, 4 * COUNT, 4 * COUNT]], "outputs": [[4 * COUNT * SLOTS, 4 * COUNT, 4 * COUNT]],
        }  # fmt: skip
        shape = ["float32", [COUNT], [1]]
        calls = [place(at) for at in range(SLOTS)]
        return self.plan({"calls": calls, "shapes": [shape, shape], "company": company, "alone": False}, [])

    def run(self) -> None:
        assert self.planned is not None
        self.neighbours.read.clear()
        for step in self.planned[1]:
            step()


@pytest.fixture
def plain_settle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PythonRequestLoop, "settle", lambda *_: None)


@pytest.mark.usefixtures("plain_settle")
def test_new_memory_is_poisoned_read_and_delivered_in_its_place() -> None:
    loop = Loop(lambda given: given * 2)
    expected = 2 * loop.memory[: SLOTS * COUNT].view(SLOTS, COUNT).clone()
    assert loop.planned_answer() == {"graph": True, "returned": True} and not loop.copies_in_time
    outputs = loop.memory[SLOTS * COUNT :].view(SLOTS, COUNT)
    before = outputs.clone()
    loop.run()
    assert loop.neighbours.read == expected.sum(dim=1).tolist()
    assert torch.equal(outputs.view(torch.int32), before.view(torch.int32)), "no copy is timed"
    loop.deliver({}, [])
    assert torch.equal(outputs, expected)
    skipped = [step for number, step in enumerate(loop.planned[1]) if number % 3 != 1]  # type: ignore[index]
    for step in skipped:
        step()
    loop.deliver({}, [])
    assert outputs.isnan().all(), "who skips a call leaves the poison of its own memory"


@pytest.mark.usefixtures("plain_settle")
@pytest.mark.parametrize(
    "kind", ["one buffer for all calls", "a ring that wraps", "not contiguous", "a view of the argument"]
)
def test_what_is_no_new_memory_laid_out_as_the_output_is_copied_in_time(kind: str) -> None:
    buffer, wide = torch.empty(COUNT), torch.empty(COUNT, 2)
    ring, at = torch.empty(COUNT + COUNT // 2), [0]

    def function(given: torch.Tensor) -> torch.Tensor:
        if kind == "one buffer for all calls":
            return torch.mul(given, 2, out=buffer)
        if kind == "a ring that wraps":  # its pieces overlap, and none begins where another does
            at[0] = (at[0] + 4) % (COUNT // 2)
            return torch.mul(given, 2, out=ring[at[0] :][:COUNT])
        if kind == "not contiguous":
            return torch.mul(given, 2, out=wide.clone()[:, 0])
        return given

    loop = Loop(function)
    assert loop.planned_answer() == {"graph": True, "returned": False} and loop.copies_in_time
    assert not loop.kept
    said = loop.respond(lambda *_: {}, {}, [])
    assert said["copies"] is True and said["shares"] is (kind == "a view of the argument")


@pytest.mark.usefixtures("plain_settle")
@pytest.mark.parametrize(("neighbour", "apart"), [(1, False), (0, True)], ids=["programmatic", "back to back"])
def test_where_all_calls_are_one_graph_nobody_copies_either(neighbour: int, apart: bool) -> None:
    loop = Loop(lambda given: given * 2)
    expected = 2 * loop.memory[: SLOTS * COUNT].view(SLOTS, COUNT).clone()
    assert loop.planned_answer(neighbour, apart=apart) == {"graph": True, "returned": True}
    first = loop.made[0].clone()
    assert torch.equal(first, expected[0]), "what the call before the graph returned is nobody's to poison"
    if not apart:
        assert loop.neighbours.read == expected.sum(dim=1).tolist()
    loop.deliver({}, [])
    assert torch.equal(loop.memory[SLOTS * COUNT :].view(SLOTS, COUNT), expected)


def test_what_timed_calls_run_is_profiled_as_it_was_planned() -> None:
    """Nothing is captured anew under the profiler, which a candidate can see."""
    loop = Loop(lambda given: given * 2)
    loop.planned_answer()
    loop.time = lambda message, _fds: loop.run() or {"seconds": float(message["repeat"])}  # type: ignore[assignment]
    made, order = len(loop.made), list[str]()

    class Watch:
        kernels = None

        def profile(self, run: Callable[[], None], *, kernels: bool) -> None:
            assert kernels
            order.append("profiler")
            run()
            self.kernels = [["own", 2.0]]  # type: ignore[assignment]

    loop.watch = Watch()
    assert loop.profile({}, []) == {"kernels": [["own", 2.0]]}
    assert order == ["profiler"] and len(loop.made) == made and len(loop.neighbours.read) == SLOTS


def test_an_empty_output_has_no_memory_and_is_none_the_less_one() -> None:
    """A call without tokens: an honest function that returns its output was CHEATED, "has no memory of its own"."""
    copier = python_worker.forms.OutputCopier()
    copier(torch.empty(0, 4), [("out", torch.empty(0, 4), False)])
