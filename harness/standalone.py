"""Calls a candidate once or a few times with nothing else around, for tools that watch a whole process.

    python -I -S standalone.py SPEC.json

SPEC.json: {"cuda_library", "library", "symbol", "repeat", "scratch",
            "arguments": [["t", file, bytes, "input"|"output"] | ["i", n] | ["f", x] | ["d", x]]}
Every tensor gets an allocation of exactly its size, so that compute-sanitizer sees each overrun; outputs are left
uninitialised, so that it sees each read of them. Standard library only; run it inside a box, as all candidate code.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

CTYPES = {"i": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double}
TO_DEVICE = 1


def main() -> int:
    spec = json.loads(Path(sys.argv[1]).read_text())
    rt = ctypes.CDLL(spec["cuda_library"], mode=ctypes.RTLD_GLOBAL)
    rt.cudaGetErrorString.restype = ctypes.c_char_p

    def check(code: int) -> None:
        if code:
            print(rt.cudaGetErrorString(code).decode(), file=sys.stderr)
            sys.exit(3)

    arguments = []
    for kind, *rest in spec["arguments"]:
        if kind != "t":
            arguments.append(CTYPES[kind](rest[0]))
            continue
        name, size, role = rest
        pointer = ctypes.c_void_p()
        check(rt.cudaMalloc(ctypes.byref(pointer), ctypes.c_size_t(size)))
        if role != "output":
            check(rt.cudaMemcpy(pointer, Path(spec["scratch"], name).read_bytes(), ctypes.c_size_t(size), TO_DEVICE))
        arguments.append(pointer)
    stream = ctypes.c_void_p()
    check(rt.cudaStreamCreate(ctypes.byref(stream)))
    function = getattr(ctypes.CDLL(spec["library"]), spec["symbol"])
    function.restype = None
    for _ in range(spec["repeat"]):
        function(*arguments, stream)
    check(rt.cudaGetLastError())
    check(rt.cudaDeviceSynchronize())
    return 0


if __name__ == "__main__":
    sys.exit(main())
