"""Counts events of this process and of all that it becomes and starts, where the kernel lets it, for harness/probes/hot_loop.py.

    python -I -S counted.py NAME=TYPE:CONFIG ... -- COMMAND

TYPE and CONFIG as perf_event_open(2) takes them. COMMAND runs in this process's place; its COUNTERS is JSON, {name: descriptor to read
the sum so far from, as eight bytes; or why it is not counted}. It is called outside of the box, whose filter forbids that system call.
Standard library only; x86-64.
"""

from __future__ import annotations

import ctypes
import json
import os
import struct
import sys

PERF_EVENT_OPEN = 298
ATTRIBUTE_BYTES = 112
INHERITED, NOT_IN_KERNEL, NOT_IN_HYPERVISOR = 1 << 1, 1 << 5, 1 << 6


def count(kind: int, config: int) -> int | str:
    """A descriptor that programs may inherit, or why there is none."""
    head = struct.pack("IIQQQQQ", kind, ATTRIBUTE_BYTES, config, 0, 0, 0, INHERITED | NOT_IN_KERNEL | NOT_IN_HYPERVISOR)
    libc = ctypes.CDLL(None, use_errno=True)
    found = libc.syscall(PERF_EVENT_OPEN, head.ljust(ATTRIBUTE_BYTES, b"\0"), 0, -1, -1, 0)
    if found < 0:
        return os.strerror(ctypes.get_errno())
    os.set_inheritable(found, True)
    return int(found)


def main(words: list[str]) -> None:
    end = words.index("--")
    counters = {}
    for word in words[:end]:
        name, _, event = word.partition("=")
        kind, config = map(int, event.split(":"))
        counters[name] = count(kind, config)
    os.environ["COUNTERS"] = json.dumps(counters)
    os.execv(words[end + 1], words[end + 1 :])


if __name__ == "__main__":
    main(sys.argv[1:])
