"""The far side: the process that loads one C++ or CUDA candidate; python_worker.py loads those in Python.

Started as `python -I -S worker.py FD` with nothing of the project on its path; as `worker.py fork FD PARENT` it forks such processes, each
in a tenth of the time (forks.py). It obeys requests on the socket FD:
enter the sandbox, map the parent's buffers, load one candidate, call it, time it. Whatever it answers is doubted: the
parent owns the inputs, checks the outputs itself in memory that it shares with this process, and holds a stopwatch of
its own. Standard library only, because a worker that starts in 30 ms is what makes one process a candidate affordable.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import mmap
import os
import socket
import struct
import sys
import time
from pathlib import Path

TYPE_CHECKING = False  # a type checker takes it for True; `typing` takes as long to import as all else
if TYPE_CHECKING:
    from typing import Any

PACKAGE = "astrolabe_farside"
"""The package that this folder is in its own processes."""
HOST_ROUND_S = 0.1
"""Seconds of calls in one measurement of the time on the host: a thousand of a model's would outlast the request."""
FENCE_BYTES = 1 << 20
"""Bytes without access before and behind a tensor."""
NOT_SUPPORTED = 801
"""CUDA's code."""
CTYPES = {"i": ctypes.c_int64, "n": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double}


class CudaError(Exception):
    pass


class Cuda:
    """The few runtime calls that a worker needs, on the same libcudart that the candidate is linked to."""

    def __init__(self, library: str, device: int) -> None:
        self.rt = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self.rt.cudaGetErrorString.restype = ctypes.c_char_p
        self.check(self.rt.cudaSetDevice(device), "cudaSetDevice")
        self.check(self.rt.cudaFree(None), "creating the context")
        self.streams = [self.stream(), self.stream()]
        self.start, self.stop = self.event(), self.event()
        self.set_aside = self.persisting_bytes()
        self.moved: set[int] = set()
        """Graphs that belong to another one."""

    def persisting_bytes(self) -> int:
        """Bytes of the L2 that are set aside for what asks to stay there."""
        size, persisting_l2 = ctypes.c_size_t(), 6
        return 0 if self.rt.cudaDeviceGetLimit(ctypes.byref(size), persisting_l2) else size.value

    def lasting(self) -> str:
        """What a candidate has set that outlives its calls and changes which lines the L2 keeps for others, or ""."""
        if (now := self.persisting_bytes()) != self.set_aside:
            return f"set {now} bytes of the L2 aside ({self.set_aside} before), which outlives its calls"
        for stream in self.streams:
            window, kind = (ctypes.c_uint64 * 8)(), 1
            if not self.rt.cudaStreamGetAttribute(stream, kind, ctypes.byref(window)) and window[1]:
                return f"left an access policy window of {window[1]} bytes on its caller's stream, which outlives its calls"
        return ""

    def check(self, code: int, what: str) -> None:
        if code:
            raise CudaError(f"{what}: {self.rt.cudaGetErrorString(code).decode()} (CUDA error {code})")

    def stream(self) -> ctypes.c_void_p:
        stream = ctypes.c_void_p()
        non_blocking = 1  # a launch on the legacy stream is then unordered with ours, as it would be in an engine
        self.check(self.rt.cudaStreamCreateWithFlags(ctypes.byref(stream), non_blocking), "cudaStreamCreate")
        return stream

    def event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self.check(self.rt.cudaEventCreate(ctypes.byref(event)), "cudaEventCreate")
        return event

    def open(self, handle: str) -> int:
        class IpcHandle(ctypes.Structure):  # passed by value, so it needs its real size
            _fields_ = [("reserved", ctypes.c_ubyte * 64)]

        self.rt.cudaIpcOpenMemHandle.argtypes = [ctypes.c_void_p, IpcHandle, ctypes.c_uint]
        pointer = ctypes.c_void_p()
        lazy_peer_access = 1
        raw = IpcHandle.from_buffer_copy(bytes.fromhex(handle))
        self.check(self.rt.cudaIpcOpenMemHandle(ctypes.byref(pointer), raw, lazy_peer_access), "cudaIpcOpenMemHandle")
        return pointer.value or 0

    def close(self, address: int) -> None:
        self.check(self.rt.cudaIpcCloseMemHandle(ctypes.c_void_p(address)), "cudaIpcCloseMemHandle")

    def copy(self, to: int, source: int, count: int) -> None:
        """Enqueue a copy of so many bytes on this device."""
        places, on_device = (ctypes.c_void_p(to), ctypes.c_void_p(source)), ctypes.c_int(3)
        self.check(
            self.rt.cudaMemcpyAsync(*places, ctypes.c_size_t(count), on_device, self.streams[0]), "cudaMemcpyAsync"
        )

    def settle(self, what: str) -> None:
        self.check(self.rt.cudaGetLastError(), what)
        self.check(self.rt.cudaDeviceSynchronize(), what)

    def capture(self, launch: Any) -> ctypes.c_void_p | None:
        """A graph of what `launch(stream)` enqueues, or None where it cannot be captured."""
        stream, graph = self.streams[0], ctypes.c_void_p()
        relaxed = 2  # lets a candidate that allocates at its first call do so
        self.check(self.rt.cudaStreamBeginCapture(stream, relaxed), "cudaStreamBeginCapture")
        launch(stream)
        code = self.rt.cudaStreamEndCapture(stream, ctypes.byref(graph))
        self.rt.cudaGetLastError()  # a refused capture leaves an error behind that is not the kernel's
        return None if code or not graph.value else graph

    def chain(self, graphs: list[ctypes.c_void_p], movable: bool) -> ctypes.c_void_p | None:
        """A graph that runs these one after another: none can reach into what is before or behind it. None where CUDA cannot make it:
        of a graph that allocates memory there is no copy; it can be moved, where it is this object's (`movable`)."""
        whole, last = ctypes.c_void_p(), ctypes.c_void_p()
        self.check(self.rt.cudaGraphCreate(ctypes.byref(whole), ctypes.c_uint(0)), "cudaGraphCreate")
        for number, graph in enumerate(graphs):
            node = ctypes.c_void_p()
            behind = ctypes.byref(last) if number else None
            count = ctypes.c_size_t(1 if number else 0)
            code = self.rt.cudaGraphAddChildGraphNode(ctypes.byref(node), whole, behind, count, graph)
            if code == NOT_SUPPORTED:
                self.rt.cudaGetLastError()
                if not movable or self.move(whole, graph, behind, count, node):
                    self.rt.cudaGetLastError()
                    self.release(whole)
                    return None
                self.moved.add(graph.value or 0)
                code = 0
            self.check(code, "cudaGraphAddChildGraphNode")
            last = node
        return whole

    def move(
        self, whole: Any, graph: ctypes.c_void_p, behind: Any, count: ctypes.c_size_t, node: ctypes.c_void_p
    ) -> int:
        """Make the graph a node of the whole one, which owns it from then on: from CUDA 12.9 on. Returns CUDA's code."""
        version = ctypes.c_int()
        self.rt.cudaRuntimeGetVersion(ctypes.byref(version))
        if version.value < 12090:
            return NOT_SUPPORTED

        class NodeParams(ctypes.Structure):  # cudaGraphNodeParams, whose union has 29 words
            _fields_ = [
                ("type", ctypes.c_int), ("reserved", ctypes.c_int * 3), ("graph", ctypes.c_void_p), ("ownership", ctypes.c_int),
                ("rest", ctypes.c_int * 55), ("last", ctypes.c_longlong),
            ]  # fmt: skip

        child, moves = 4, 1
        given = ctypes.byref(NodeParams(type=child, graph=graph, ownership=moves))
        add = (
            getattr(self.rt, "cudaGraphAddNode_v2", None) or self.rt.cudaGraphAddNode
        )  # CUDA 13's is the second version
        return int(add(ctypes.byref(node), whole, behind, None, count, given))

    def release(self, graph: ctypes.c_void_p) -> None:
        if graph.value in self.moved:
            self.moved.remove(graph.value)
            return
        self.check(self.rt.cudaGraphDestroy(graph), "cudaGraphDestroy")

    def executable(self, graph: ctypes.c_void_p) -> ctypes.c_void_p | None:
        """What can be launched of a graph, or None where it cannot be instantiated."""
        executable = ctypes.c_void_p()
        if self.rt.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)):
            self.rt.cudaGetLastError()
            return None
        self.check(self.rt.cudaGraphUpload(executable, self.streams[0]), "cudaGraphUpload")
        return executable


class NeighbourCall(ctypes.Structure):
    """As in probes/company.cu."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("to", "a", "x", "b", "bytes", "packs_of_b", "steps_of_a")]


class NeighbourCalls(ctypes.Structure):
    _fields_ = [("piece", NeighbourCall * 32), ("count", ctypes.c_int), ("steps_of_b", ctypes.c_uint32)]


class Neighbours:
    """The kernels around each call (probes/company.cu), as the parent describes them (harness/timing/neighbours.py)."""

    def __init__(self, library: Any, base: int, message: dict[str, Any]) -> None:
        self.library, self.base, self.message = library, base, message
        self.apart: bool = message["apart"]
        self.plain = message["neighbour"] == 0 and not self.apart
        self.returned: dict[int, int] = {}
        """Address of an output -> of what a call returned for it, which is read after it in its place, and poisoned before it where each
        call is a graph of its own: in one of them all nobody knows yet where it will be."""

    def pieces(self, places: list[list[int]], slot: int) -> NeighbourCalls:
        """[first, stride, bytes, a, x or -1, b, packs of b, steps of a] of each tensor, all but three where it is produced."""
        made = NeighbourCalls(count=len(places), steps_of_b=self.message["steps"])
        for at, (first, stride, size, *mixture) in enumerate(places):
            to = self.base + first + slot * stride
            made.piece[at] = NeighbourCall(to=self.returned.get(to, to), bytes=size)
            if mixture:
                a, x, b, packs, steps = mixture
                made.piece[at].a, made.piece[at].b = self.base + a, self.base + b
                made.piece[at].x, made.piece[at].packs_of_b = (self.base + x if x >= 0 else 0), packs
                made.piece[at].steps_of_a = steps
        return made

    def address(self, name: str, slot: int) -> ctypes.c_void_p:
        return ctypes.c_void_p(self.base + self.message[name] + 8 * slot)

    def before(self, slot: int, slots: int, stream: Any) -> None:
        inputs, poisoned = (self.pieces(self.message[name], slot) for name in ("pieces", "poisoned"))
        secret, seen = self.address("secrets", slot), self.address("digests", (slot - 1) % slots)
        # Where nothing is read in between, nothing may be forgotten.
        now = self.address("never", 0) if self.apart else self.address("digests", slot)
        neighbour = ctypes.c_int(self.message["neighbour"])
        by = ctypes.byref
        self.library.company_produce(by(inputs), by(poisoned), secret, seen, now, neighbour, stream)
        evicted, size, kept = self.message["evict"]
        if size:
            place, never = ctypes.c_void_p(self.base + evicted), self.address("never", 0)
            self.library.company_evict(by(poisoned), place, ctypes.c_int64(size), never, ctypes.c_int(kept), stream)

    def after(self, slot: int, stream: Any) -> None:
        outputs = self.pieces(self.message["outputs"], slot)
        neighbour = ctypes.c_int(self.message["neighbour"])
        self.library.company_consume(ctypes.byref(outputs), self.address("digests", slot), neighbour, stream)


class RequestLoop:
    REQUESTS = ("enter", "warm", "load", "map", "unmap", "call", "plan", "host", "time")
    """Requests, by the names of the methods that answer them."""

    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.cuda: Cuda | None = None
        self.arenas: dict[int, tuple[int, Any]] = {}
        self.sizes: dict[int, int] = {}
        """Bytes of each arena."""
        self.candidate = 0
        """Whose entries, plan and rounding are at hand, of several candidates of one author."""
        self.others: dict[int, dict[str, Any]] = {}
        """Those of the others."""
        self.symbols: dict[str, Any] = {}
        self.programmatic = ctypes.c_int()
        self.neighbours: Any = None
        """The library of the neighbours on a GPU, on a CPU that of the loop that makes calls."""
        self.rounding = b""
        """`rounding_control` once the candidate was loaded: what a call that nobody checks has changed shows in the next that is."""
        self.planned: tuple[list[Any], Any, Any] | None = None
        """The launches in order, their graph and the one that is run before it, untimed; on a CPU in the graph's place what the
        loop is given: the entry, the words of all calls and how many of each lie on the stack."""
        self.whole: tuple[Any, Any] | None = None
        """Whoever captured it, and what the graph is made from."""

    # Requests. Each takes the message and returns the answer; an exception becomes {"error": ...}.

    def enter(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        sandbox = load_sibling("sandbox")
        box = message["box"]
        return {"active": sandbox.enter(**{**box, "limits": sandbox.ProcessLimits(**box["limits"])})}

    def warm(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """The device at hand before anything of a candidate is here."""
        if message["gpu"] and self.cuda is None:
            self.cuda = Cuda(message["cuda_library"], message["device"])
        return {}

    def load(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.warm(message, fds)
        if "company" in message:  # who only answers what is right is not timed
            self.neighbours = ctypes.CDLL(message["company"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
        library = ctypes.CDLL(message["path"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
        self.programmatic = (
            ctypes.c_int.in_dll(library, "enable_pdl") if hasattr(library, "enable_pdl") else ctypes.c_int()
        )
        found = {}
        for dtype, names in message["symbols"].items():
            for name in names:
                if hasattr(library, name):
                    found[dtype] = name
                    self.symbols[dtype] = getattr(library, name)
                    self.symbols[dtype].restype = None
                    break
        self.rounding = rounding_control()
        return {"found": found}

    def choose(self, candidate: int) -> None:
        """Have at hand what is that candidate's, or nothing yet."""
        if candidate != self.candidate:
            self.others[self.candidate] = self.swap(self.others.pop(candidate, self.unloaded()))
            self.candidate = candidate

    def unloaded(self) -> dict[str, Any]:
        """What there is of each candidate by itself, before it is loaded."""
        return {"symbols": {}, "programmatic": ctypes.c_int(), "rounding": b"", "planned": None, "whole": None}

    def swap(self, state: dict[str, Any]) -> dict[str, Any]:
        """Have this state at hand; what was before in its place."""
        before = {name: getattr(self, name) for name in state}
        self.__dict__.update(state)
        return before

    def map(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.unmap(message, fds)
        if message["kind"] == "memfd":
            # Page tables and all: else a timed call has the faults of whoever first touches its argument set.
            view = mmap.mmap(fds[0], message["size"], flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
            os.close(fds[0])
            self.arenas[message["id"]] = (ctypes.addressof(ctypes.c_char.from_buffer(view)), view)
        else:
            assert self.cuda is not None
            self.arenas[message["id"]] = (self.cuda.open(message["handle"]), None)
        self.sizes[message["id"]] = message["size"]
        return {}

    def unmap(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Forget an arena, and the plans, since they hold addresses."""
        for candidate in [*self.others, self.candidate]:
            self.choose(candidate)
            self.forget()
        address, view = self.arenas.pop(message["id"], (0, None))
        if address and view is None:
            assert self.cuda is not None
            self.cuda.close(address)
        return {}

    def call(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Call once for each argument list, or `repeat` times, without waiting in between: on alternating streams, or on one, `in_turn`."""
        function = self.symbols[message["dtype"]]
        if message.get("fence"):
            self.call_fenced(function, message["calls"][0], message["fence"])
            return {}
        calls = [self.arguments(arguments) for arguments in message["calls"]]
        repeat = message.get("repeat", 1)
        if repeat > 1 and self.neighbours is not None and self.cuda is None:
            order = (ctypes.c_int32 * len(calls))(*range(len(calls)))
            entry = ctypes.cast(function, ctypes.c_void_p)
            self.neighbours.make_calls(entry, *words_of(self.neighbours, calls), order, len(calls), repeat)
            return check_rounding(self.rounding)
        for _ in range(repeat):
            for index, prepared in enumerate(calls):
                if self.cuda:
                    function(*prepared, self.cuda.streams[0 if message.get("in_turn") else index % 2])
                else:
                    function(*prepared)
        if self.cuda:
            self.cuda.settle("the kernel")
        return check_rounding(self.rounding)

    def call_fenced(self, function: Any, arguments: list[list[Any]], fence: dict[str, Any]) -> None:
        """On a CPU: one call whose tensors lie in pages of their own between pages without access, inputs in read-only ones.

        fence: `end`, whether each tensor ends where its last page does, else it begins where its first one does; `tensors`: bytes of
        each, and whether it is only read.
        """
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mmap.restype, libc.mmap.argtypes = (
            ctypes.c_void_p,
            [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
        )
        libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
        private_anonymous, wide, page = 0x22, FENCE_BYTES, mmap.PAGESIZE
        tensors, mapped, prepared = iter(fence["tensors"]), [], []
        for item, plain in zip(arguments, self.arguments(arguments), strict=True):
            if item[0] != "p":
                prepared.append(plain)
                continue
            size, only_read = next(tensors)
            body = -(-size // page) * page
            base = libc.mmap(None, body + 2 * wide, 0, private_anonymous, -1, 0)
            if base in (None, ctypes.c_void_p(-1).value):
                raise MemoryError(f"mmap: {os.strerror(ctypes.get_errno())}")
            first = base + wide
            libc.mprotect(first, body, mmap.PROT_READ | mmap.PROT_WRITE)
            at = first + (body - size if fence["end"] else 0)
            ctypes.memmove(at, plain.value, size)
            if only_read:
                libc.mprotect(first, body, mmap.PROT_READ)
            mapped.append((base, body + 2 * wide, at, plain.value, size, only_read))
            prepared.append(ctypes.c_void_p(at))
        function(*prepared)
        for base, whole, at, home, size, only_read in mapped:
            if not only_read:
                ctypes.memmove(home, at, size)
            libc.munmap(base, whole)

    def plan(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Prepare a sequence of calls to be timed, in place of the one before: on a GPU a graph of them between their neighbours.

        `alone`: only the neighbours, without the calls. `again`: the same calls as before in a graph of their own.
        """
        if message.get("again") and self.planned is not None:
            return self.replan()
        self.forget()
        function = self.symbols[message["dtype"]]
        calls = [self.arguments(arguments) for arguments in message["calls"]]
        if self.cuda is None:
            launches = [lambda prepared=prepared: function(*prepared) for prepared in calls]
            entry = ctypes.cast(function, ctypes.c_void_p)
            self.planned = launches, (entry, *words_of(self.neighbours, calls)), None
            return {"graph": True}
        neighbours = Neighbours(self.neighbours, self.arenas[message["company"]["arena"]][0], message["company"])
        self.programmatic.value = int(message["company"]["programmatic"])
        own = [lambda stream, prepared=prepared: function(*prepared, stream) for prepared in calls]
        self.planned, self.whole = plan_with_neighbours(
            self.cuda, neighbours, own, self.cuda, neighbours_only=message["alone"]
        )
        return {"graph": self.whole is not None}

    def replan(self) -> dict[str, Any]:
        if self.whole is not None:
            assert self.planned is not None and self.cuda is not None
            launches, graph, ahead = self.planned
            # Beside the one before, so that it gets another place; of a graph that allocates memory there is one at a time.
            another = self.cuda.executable(self.whole[1])
            self.cuda.rt.cudaGraphExecDestroy(graph)
            self.planned = launches, another or self.cuda.executable(self.whole[1]), ahead
        return {"graph": self.whole is not None}

    def host(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Seconds that the host takes for each of `repeat` calls, on a GPU only enqueued; of fewer where they take long."""
        function, stream = self.symbols[message["dtype"]], [self.cuda.streams[0]] if self.cuda else []
        prepared = self.arguments(message["calls"][0])
        return {"seconds": self.time_enqueue(lambda: function(*prepared, *stream), message["repeat"])}

    def time_enqueue(self, call: Any, repeat: int) -> float:
        """Seconds a call, the least of five rounds."""

        def taken(calls: int, *, whole: bool) -> float:
            start = time.perf_counter_ns()
            for _ in range(calls):
                call()
            enqueued_ns = time.perf_counter_ns() - start
            if self.cuda:
                self.cuda.settle("the kernel")
            return (time.perf_counter_ns() - start if whole else enqueued_ns) * 1e-9 / calls

        repeat = max(1, min(repeat, int(HOST_ROUND_S / max(taken(1, whole=True), 1e-9))))
        return min(taken(repeat, whole=False) for _ in range(5))

    def time(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Make the planned calls of these numbers in that `order`, `repeat` times; on a GPU all of them as they were planned.

        Answers the seconds that it took by this side's clock.
        """
        assert self.planned is not None
        launches, graph, before = self.planned
        repeat = message["repeat"]
        if self.cuda is None and graph is None:  # a Python candidate's calls come from Python
            calls = [launches[number] for number in message["order"]]
            start = time.perf_counter_ns()
            for _ in range(repeat):
                for call in calls:
                    call()
            return {"seconds": (time.perf_counter_ns() - start) * 1e-9}
        if self.cuda is None:
            order = (ctypes.c_int32 * len(message["order"]))(*message["order"])
            taken_ns = self.neighbours.make_calls(*graph, order, len(order), repeat)
            return {"seconds": taken_ns * 1e-9}
        return {"seconds": time_with_neighbours(self.cuda, launches, graph, before, repeat)}

    # The rest is plumbing.

    def forget(self) -> None:
        """Let go of the plan. Nothing of it is running: every request settles what it has started."""
        planned, self.planned = self.planned, None
        for graph in planned[1:] if planned is not None else ():
            if graph is not None and self.cuda:
                self.cuda.rt.cudaGraphExecDestroy(graph)
        if self.whole is not None:
            self.whole[0].release(self.whole[1])
            self.whole = None

    def arguments(self, encoded: list[list[Any]]) -> list[Any]:
        """["p", arena, offset] | ["i", integer] | ["n", 0], a null pointer | ["f", float] | ["d", float] -> ctypes values."""
        return [
            ctypes.c_void_p(self.arenas[item[1]][0] + item[2]) if item[0] == "p" else CTYPES[item[0]](item[1])
            for item in encoded
        ]

    def serve(self) -> None:
        requests = {name: getattr(self, name) for name in self.REQUESTS}
        while True:
            message, fds = receive(self.channel)
            if message is None:
                return
            self.choose(message.get("candidate", 0))
            try:
                answer = requests[message["op"]](message, fds)
            except CudaError as error:
                answer = {"error": str(error), "fatal": True}
            except (OSError, MemoryError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            send(self.channel, make_refusal(self.cuda, message["op"], answer))


STACK_WORDS = (0, 4, 16, 64)
"""Numbers of words that a call can put on the stack, as in probes/calls.cpp."""


def words_of(library: Any, calls: list[list[Any]]) -> tuple[Any, int]:
    """(all calls' arguments as probes/calls.cpp wants them, words of each that lie on the stack), of ctypes values."""
    library.make_calls.restype = ctypes.c_int64
    library.make_calls.argtypes = [ctypes.c_void_p] * 2 + [ctypes.c_int64, ctypes.c_void_p] + [ctypes.c_int64] * 2
    registers = library.integer_registers(), library.float_registers()
    placed: list[list[int]] = []
    most = 0
    for call in calls:
        whole: tuple[list[int], list[int]] = ([], [])
        stack: list[int] = []
        for value in call:
            word = int.from_bytes(bytes(value).ljust(8, b"\0"), sys.byteorder)
            kind = isinstance(value, (ctypes.c_float, ctypes.c_double))
            (whole[kind] if len(whole[kind]) < registers[kind] else stack).append(word)
        most = max(most, len(stack))
        placed.append(
            [*whole[0], *[0] * (registers[0] - len(whole[0])), *whole[1], *[0] * (registers[1] - len(whole[1])), *stack]
        )
    room = next((size for size in STACK_WORDS if size >= most), None)
    if room is None:
        raise OSError(f"an entry point with {most} arguments more than fit into registers cannot be called")
    length = sum(registers) + room
    flat = [word for words in placed for word in (*words, *[0] * (length - len(words)))]
    return (ctypes.c_uint64 * len(flat))(*flat), room


def plan_with_neighbours(
    cuda: Cuda, context: Neighbours, calls: list[Any], capturing: Any, *, neighbours_only: bool
) -> tuple[tuple[list[Any], Any, Any], tuple[Any, Any] | None]:
    """((launches in order, their executable graph, that of what is run before it), (who frees it, what it is made from)).

    The last is None where they cannot be captured.

    `calls` take a stream; `capturing.capture` makes a graph of some, or None, and `capturing.release` frees it. Each call
    is a graph of its own between its neighbours', so that it can neither run beside another nor change what they do.
    Where programmatic launches take part the calls are captured as one sequence: only there a kernel may begin before the
    one ahead of it has ended.
    """
    slots = range(len(calls))
    before = [lambda stream, slot=slot: context.before(slot, len(calls), stream) for slot in slots]
    after = [lambda stream, slot=slot: context.after(slot, stream) for slot in slots]
    stream = cuda.streams[0]
    before[0](stream)
    if not neighbours_only:
        calls[0](stream)  # what a candidate does at its first call is not what is timed
    cuda.settle("the kernel")
    context.returned.clear()  # what that call returned is let go of
    made: list[tuple[Any, Any]] = []

    def captured(by: Any, launch: Any) -> Any:
        graph = by.capture(launch)
        if graph is not None:
            made.append((by, graph))
        return graph

    middle = [[] if neighbours_only else [call] for call in calls]
    ahead = None
    if context.apart:
        ahead = cuda.executable(captured(cuda, lambda stream: [launch(stream) for launch in before]))
        sequence = [launch for slot in slots for launch in middle[slot]]
    else:
        sequence = [launch for slot in slots for launch in (before[slot], *middle[slot], after[slot])]
    if context.plain:
        parts: list[Any] = []
        for slot in slots:
            own = [captured(capturing, call) for call in middle[slot]]  # first: where it returns its outputs it says so
            parts += [captured(cuda, before[slot]), *own, captured(cuda, after[slot])]
            if None in parts:
                break
        chained = None if None in parts else cuda.chain(parts, movable=capturing is cuda)
        whole = None if chained is None else (cuda, chained)
    else:
        all_of_it = capturing.capture(lambda stream: [launch(stream) for launch in sequence])
        whole = None if all_of_it is None else (capturing, all_of_it)
    graph = None if whole is None else cuda.executable(whole[1])
    for by, one in made:
        by.release(one)
    cuda.settle("the captured kernel")
    return (sequence, graph, ahead), whole if graph is not None else None


def time_with_neighbours(cuda: Cuda, launches: list[Any], graph: Any, ahead: Any, repeat: int) -> float:
    """Seconds of so many passes, by CUDA events."""
    rt, stream, elapsed = cuda.rt, cuda.streams[0], ctypes.c_float()
    if ahead is not None:
        rt.cudaGraphLaunch(ahead, stream)
    rt.cudaEventRecord(cuda.start, stream)
    for _ in range(repeat):
        if graph is not None:
            rt.cudaGraphLaunch(graph, stream)
        else:
            for launch in launches:
                launch(stream)
    rt.cudaEventRecord(cuda.stop, stream)
    cuda.settle("the timed kernel")
    cuda.check(rt.cudaEventElapsedTime(ctypes.byref(elapsed), cuda.start, cuda.stop), "cudaEventElapsedTime")
    return elapsed.value * 1e-3


def rounding_control() -> bytes:
    """How this thread rounds and whether it flushes subnormal numbers, as its processor's control registers say."""
    environment, library = (ctypes.c_ubyte * 64)(), ctypes.CDLL(None)
    if hasattr(library, "fegetenv"):
        library.fegetenv(environment)
    raw = bytes(environment)
    if os.uname().machine != "x86_64":
        return raw[:4]
    return raw[:2] + (int.from_bytes(raw[28:32], "little") & ~0x3F).to_bytes(4, "little")  # without what has happened


def check_rounding(before: bytes) -> dict[str, Any]:
    """An answer: {}, or that a call has left its caller's thread with other registers than those."""
    if rounding_control() == before:
        return {}
    said = "left its caller's thread with another rounding, or subnormal numbers treated otherwise"
    return {"error": said, "outcome": "INCORRECT"}


LASTING = ("call", "plan", "host")
"""Requests whose answers say what a candidate has left behind."""


def make_refusal(cuda: Any, op: str, answer: dict[str, Any]) -> dict[str, Any]:
    """The answer, or an error in its place."""
    left = cuda.lasting() if cuda is not None and op in LASTING and "error" not in answer else ""
    return {"error": left, "outcome": "CHEATED"} if left else answer


def load_sibling(name: str) -> Any:
    """A module beside this file: the folder is a package, though the repository is not on this process's path."""
    if PACKAGE not in sys.modules:
        package = sys.modules[PACKAGE] = type(sys)(PACKAGE)
        package.__path__ = [str(Path(__file__).parent)]
    return importlib.import_module(f"{PACKAGE}.{name}")


def send(channel: socket.socket, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    channel.sendall(struct.pack("<I", len(data)) + data)


def receive(channel: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    """The next message and the file descriptors that came with it; None where the parent has gone."""
    head, fds, _, _ = socket.recv_fds(channel, 4, 1)
    if len(head) < 4:
        return None, list(fds)
    (left,) = struct.unpack("<I", head)
    parts = []
    while left:
        part = channel.recv(min(left, 1 << 20))
        if not part:
            return None, list(fds)
        parts.append(part)
        left -= len(part)
    return json.loads(b"".join(parts)), list(fds)


def main() -> None:
    if sys.argv[1] != "fork":
        RequestLoop(socket.socket(fileno=int(sys.argv[1]))).serve()
        return
    descriptor, parent = sys.argv[2:]
    forks = load_sibling("forks")
    forks.die_with(int(parent))
    load_sibling("sandbox")
    gc.freeze()  # no worker looks through it, nor copies its pages to do so
    forks.serve(int(descriptor), dict(os.environ), work)


def work(request: dict[str, Any], channel: int) -> None:
    """What a fork does: answers requests, or becomes the request's command in its box."""
    if "command" in request:
        os.close(channel)
        load_sibling("sandbox").run_command(request["box"] | {"parent": os.getppid()}, request["command"])
    RequestLoop(socket.socket(fileno=channel)).serve()


if __name__ == "__main__":
    main()
