"""Calls a candidate on a CPU for a while and says at which instructions its threads were, for harness/probes/hot_loop.py.

    python -I -S sampled.py CALLS.json SECONDS

CALLS.json as harness/farside/standalone.py takes it, without CUDA, of one call; beside it lies sampler.so. Prints one line of JSON:
{"calls", "seconds", "inside": {offset in the library: samples}, "outside": {library: samples}, "counters": {event: count in these
calls, or why it was not counted}}, events as harness/farside/counted.py opened them. Standard library only.
"""

from __future__ import annotations

import ctypes
import json
import mmap
import os
import sys
import time
from collections import Counter
from pathlib import Path

CTYPES = {"i": ctypes.c_int64, "n": ctypes.c_int64, "f": ctypes.c_float, "d": ctypes.c_double}
MOST = 1 << 16


class ValuePlace(ctypes.Structure):
    _fields_ = (
        ("file", ctypes.c_char_p),
        ("base", ctypes.c_void_p),
        ("symbol", ctypes.c_char_p),
        ("address", ctypes.c_void_p),
    )


def read_counters() -> dict[str, int | str]:
    """What each event came to so far, in all threads; or why it is not counted."""
    opened = json.loads(os.environ.get("COUNTERS", "{}"))
    return {
        name: int.from_bytes(os.read(at, 8), sys.byteorder) if isinstance(at, int) else str(at)
        for name, at in opened.items()
    }


def main(path: Path, seconds: float) -> None:
    told, folder = json.loads(path.read_text()), path.parent
    sampler = ctypes.CDLL(str(folder / "sampler.so"))
    library = ctypes.CDLL(str((folder / told["library"]).absolute()), mode=os.RTLD_NOW | os.RTLD_LOCAL)
    (wanted,) = told["calls"]
    function = next(getattr(library, name) for name in wanted["symbols"] if hasattr(library, name))
    function.restype = None
    arguments, held = [], []
    for kind, *rest in wanted["arguments"]:
        if kind != "t":
            arguments.append(CTYPES[kind](rest[0]))
            continue
        size, name = rest
        held.append(mmap.mmap(-1, max(size, 1)))
        if name:
            data = (folder / name).read_bytes()
            for at in range(0, size, len(data)):
                held[-1][at : min(at + len(data), size)] = data[: min(len(data), size - at)]
        arguments.append(ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(held[-1]))))
    function(*arguments)  # its pages are there from now on
    places = (ctypes.c_uint64 * MOST)()
    before = read_counters()
    calls, began = 0, time.monotonic()
    sampler.start(places, ctypes.c_int64(MOST))
    while (took := time.monotonic() - began) < seconds:
        function(*arguments)
        calls += 1
    count = min(int(sampler.stop()), MOST)
    counters = {
        name: so_far - earlier if isinstance(earlier := before[name], int) and isinstance(so_far, int) else so_far
        for name, so_far in read_counters().items()
    }
    inside, outside, libc = Counter[int](), Counter[str](), ctypes.CDLL(None)
    own = ValuePlace()
    libc.dladdr(ctypes.cast(function, ctypes.c_void_p), ctypes.byref(own))
    for address in places[:count]:
        place = ValuePlace()
        if libc.dladdr(ctypes.c_void_p(address), ctypes.byref(place)) and place.base == own.base:
            inside[address - own.base] += 1
        else:
            outside[Path((place.file or b"?").decode(errors="replace")).name] += 1
    found = {"calls": calls, "seconds": took, "inside": inside, "outside": outside, "counters": counters}
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
