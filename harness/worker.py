"""The far side: the only process that loads candidate code.

Started as `python -I -S worker.py FD` with nothing of the project on its path. It obeys requests on the socket FD:
enter the sandbox, map the parent's buffers, load one candidate, call it, time it. Whatever it answers is doubted: the
parent owns the inputs, checks the outputs itself in memory that it shares with this process, and holds a stopwatch of
its own. Standard library only, because a worker that starts in 30 ms is what makes one process a candidate affordable.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import mmap
import os
import socket
import struct
import sys
import time
from pathlib import Path
from typing import Any

CTYPES = {"i": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double}


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

    def settle(self, what: str) -> None:
        self.check(self.rt.cudaGetLastError(), what)
        self.check(self.rt.cudaDeviceSynchronize(), what)

    def capture(self, launch: Any) -> ctypes.c_void_p | None:
        """An executable graph of what `launch(stream)` enqueues, or None where it cannot be captured."""
        stream, graph, executable = self.streams[0], ctypes.c_void_p(), ctypes.c_void_p()
        relaxed = 2  # lets a candidate that allocates at its first call do so
        self.check(self.rt.cudaStreamBeginCapture(stream, relaxed), "cudaStreamBeginCapture")
        launch(stream)
        code = self.rt.cudaStreamEndCapture(stream, ctypes.byref(graph))
        self.rt.cudaGetLastError()  # a refused capture leaves an error behind that is not the kernel's
        if code or not graph.value:
            return None
        if self.rt.cudaGraphInstantiate(ctypes.byref(executable), graph, ctypes.c_ulonglong(0)):
            self.rt.cudaGetLastError()
            return None
        self.check(self.rt.cudaGraphDestroy(graph), "cudaGraphDestroy")
        self.check(self.rt.cudaGraphUpload(executable, stream), "cudaGraphUpload")
        return executable


class Worker:
    def __init__(self, channel: socket.socket) -> None:
        self.channel = channel
        self.cuda: Cuda | None = None
        self.arenas: dict[int, tuple[int, Any]] = {}
        self.symbols: dict[str, Any] = {}
        self.planned: tuple[Any, list[Any], Any] | None = None
        """The function, the argument lists, and on a GPU their graph."""

    # Requests. Each takes the message and returns the answer; an exception becomes {"error": ...}.

    def enter(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        sandbox = load_sibling("sandbox")
        box = message["box"]
        return {"active": sandbox.enter(**{**box, "limits": sandbox.Limits(**box["limits"])})}

    def load(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        if message["gpu"] and self.cuda is None:
            self.cuda = Cuda(message["cuda_library"], message["device"])
        library = ctypes.CDLL(message["path"], mode=os.RTLD_NOW | os.RTLD_LOCAL)
        found = {}
        for dtype, names in message["symbols"].items():
            for name in names:
                if hasattr(library, name):
                    found[dtype] = name
                    self.symbols[dtype] = getattr(library, name)
                    self.symbols[dtype].restype = None
                    break
        return {"found": found}

    def map(self, message: dict[str, Any], fds: list[int]) -> dict[str, Any]:
        self.unmap(message, fds)
        if message["kind"] == "memfd":
            view = mmap.mmap(fds[0], message["size"])
            os.close(fds[0])
            self.arenas[message["id"]] = (ctypes.addressof(ctypes.c_char.from_buffer(view)), view)
        else:
            assert self.cuda is not None
            self.arenas[message["id"]] = (self.cuda.open(message["handle"]), None)
        return {}

    def unmap(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Forget an arena, and the plan, since it holds addresses."""
        self.forget()
        address, view = self.arenas.pop(message["id"], (0, None))
        if address and view is None:
            assert self.cuda is not None
            self.cuda.close(address)
        return {}

    def call(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Call once for each argument list, on alternating streams, without waiting in between."""
        function = self.symbols[message["dtype"]]
        for index, arguments in enumerate(message["calls"]):
            prepared = self.arguments(arguments)
            if self.cuda:
                function(*prepared, self.cuda.streams[index % 2])
            else:
                function(*prepared)
        if self.cuda:
            self.cuda.settle("the kernel")
        return {}

    def plan(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Prepare a sequence of calls to be timed, in place of the one before: argument lists, and on a GPU their graph."""
        self.forget()
        function = self.symbols[message["dtype"]]
        calls = [self.arguments(arguments) for arguments in message["calls"]]
        graph = None
        if self.cuda:
            stream = self.cuda.streams[0]
            function(*calls[0], stream)  # what a candidate does at its first call is not what is timed
            self.cuda.settle("the kernel")
            graph = self.cuda.capture(lambda stream: [function(*prepared, stream) for prepared in calls])
            self.cuda.settle("the captured kernel")
        self.planned = (function, calls, graph)
        return {"graph": graph is not None or self.cuda is None}

    def time(self, message: dict[str, Any], _fds: list[int]) -> dict[str, Any]:
        """Make `count` of the planned calls from the `first` on, `repeat` times; the first follows the last.

        A graph is always run as a whole. Answers the seconds that it took by this side's clock.
        """
        assert self.planned is not None
        function, calls, graph = self.planned
        calls = (calls + calls)[message["first"] : message["first"] + message["count"]]
        repeat = message["repeat"]
        if self.cuda is None:
            clock = time.perf_counter_ns
            start = clock()
            for _ in range(repeat):
                for prepared in calls:
                    function(*prepared)
            return {"seconds": (clock() - start) * 1e-9}
        rt, stream, elapsed = self.cuda.rt, self.cuda.streams[0], ctypes.c_float()
        rt.cudaEventRecord(self.cuda.start, stream)
        for _ in range(repeat):
            if graph is not None:
                rt.cudaGraphLaunch(graph, stream)
            else:
                for prepared in calls:
                    function(*prepared, stream)
        rt.cudaEventRecord(self.cuda.stop, stream)
        self.cuda.settle("the timed kernel")
        code = rt.cudaEventElapsedTime(ctypes.byref(elapsed), self.cuda.start, self.cuda.stop)
        self.cuda.check(code, "cudaEventElapsedTime")
        return {"seconds": elapsed.value * 1e-3}

    # The rest is plumbing.

    def forget(self) -> None:
        """Let go of the plan. Nothing of it is running: every request settles what it has started."""
        planned, self.planned = self.planned, None
        if planned is not None and planned[2] is not None and self.cuda:
            self.cuda.rt.cudaGraphExecDestroy(planned[2])

    def arguments(self, encoded: list[list[Any]]) -> list[Any]:
        """["p", arena, offset] | ["i", integer] | ["f", float] | ["d", float] -> ctypes values."""
        return [
            ctypes.c_void_p(self.arenas[item[1]][0] + item[2]) if item[0] == "p" else CTYPES[item[0]](item[1])
            for item in encoded
        ]

    def serve(self) -> None:
        names = ("enter", "load", "map", "unmap", "call", "plan", "time")
        requests = {name: getattr(self, name) for name in names}
        while True:
            message, fds = receive(self.channel)
            if message is None:
                return
            try:
                answer = requests[message["op"]](message, fds)
            except CudaError as error:
                answer = {"error": str(error), "fatal": True}
            except (OSError, MemoryError) as error:
                answer = {"error": f"{type(error).__name__}: {error}"}
            send(self.channel, answer)


def load_sibling(name: str) -> Any:
    """A module beside this file, by location: the repository is not on this process's path."""
    path = Path(__file__).with_name(f"{name}.py")
    spec = importlib.util.spec_from_file_location(f"astrolabe_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


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


if __name__ == "__main__":
    Worker(socket.socket(fileno=int(sys.argv[1]))).serve()
