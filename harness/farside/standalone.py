"""Calls a candidate with nothing else around, for tools that watch a whole process.

    python -I -S standalone.py CALLS.json

CALLS.json: {"cuda_library", "library", "calls": [{"symbols": [name, ...], "arguments": [...]}]}, an argument being
["t", bytes, file] a tensor of that size, filled with the file's bytes over and over, or left alone where file is "",
["i", n] an int64_t, ["f", x] a float, ["d", x] a double. Paths are relative to the folder of CALLS.json.

Every tensor gets an allocation of exactly its size with a hole after it, so that compute-sanitizer sees each overrun;
outputs are left uninitialised, so that it sees each read of them. Standard library only; for a box, as all that loads a
candidate (harness/processes/toolbox.py). Exit status 3: CUDA said no, in words on standard error; 4: no such entry.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
from pathlib import Path
from typing import Any

CTYPES = {"i": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double}
HOLE_BYTES = 4096
HOST_TO_DEVICE = 1


class Runtime:
    """libcudart, the one that the candidate is linked to."""

    def __init__(self, library: str) -> None:
        self.rt = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        self.rt.cudaGetErrorString.restype = ctypes.c_char_p

    def check(self, code: int, what: str) -> None:
        if code:
            print(f"{what}: {self.rt.cudaGetErrorString(code).decode()}", file=sys.stderr, flush=True)
            # Not sys.exit: a candidate's exit handlers have nothing to say any more, and its context may be broken.
            os._exit(3)

    def allocate(self, size: int) -> ctypes.c_void_p:
        pointer = ctypes.c_void_p()
        self.check(self.rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)), f"cudaMalloc of {size} bytes")
        return pointer

    def fill(self, pointer: ctypes.c_void_p, size: int, data: bytes) -> None:
        for at in range(0, size, len(data)):
            part = ctypes.c_void_p((pointer.value or 0) + at)
            count = ctypes.c_size_t(min(len(data), size - at))
            self.check(self.rt.cudaMemcpy(part, data, count, HOST_TO_DEVICE), "copying an input to the device")

    def free(self, pointer: ctypes.c_void_p) -> None:
        self.check(self.rt.cudaFree(pointer), "cudaFree")


def call(cuda: Runtime, function: Any, encoded: list[list[Any]], stream: ctypes.c_void_p, folder: Path) -> None:
    """One call with tensors of its own, which are freed afterwards."""
    arguments: list[Any] = []
    tensors: list[ctypes.c_void_p] = []
    holes: list[ctypes.c_void_p] = []
    for kind, *rest in encoded:
        if kind != "t":
            arguments.append(CTYPES[kind](rest[0]))
            continue
        size, name = rest
        tensors.append(cuda.allocate(size))
        holes.append(cuda.allocate(HOLE_BYTES))
        if name:
            cuda.fill(tensors[-1], size, (folder / name).read_bytes())
        arguments.append(tensors[-1])
    for hole in holes:
        cuda.free(hole)
    function(*arguments, stream)
    cuda.check(cuda.rt.cudaGetLastError(), "the launch")
    cuda.check(cuda.rt.cudaDeviceSynchronize(), "the kernel")
    for tensor in tensors:
        cuda.free(tensor)


def main(path: Path) -> None:
    spec, folder = json.loads(path.read_text()), path.parent
    cuda = Runtime(spec["cuda_library"])
    stream = ctypes.c_void_p()
    cuda.check(cuda.rt.cudaStreamCreate(ctypes.byref(stream)), "cudaStreamCreate")
    library = ctypes.CDLL(str((folder / spec["library"]).absolute()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    for wanted in spec["calls"]:
        function = next((getattr(library, name) for name in wanted["symbols"] if hasattr(library, name)), None)
        if function is None:
            print(f"no entry {' or '.join(wanted['symbols'])}", file=sys.stderr, flush=True)
            os._exit(4)
        function.restype = None
        call(cuda, function, wanted["arguments"], stream, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
