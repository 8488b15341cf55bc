"""Imported by whoever runs tests: contests in this process and in those forked from it take this machine's caches for a desktop's.

Argument sets of a contest fill half of the last-level cache, and three times it. On a server of 260 MiB that is a
gigabyte for each case, which takes longer than the samples; cold calls are cold with less, for their lines are flushed.
"""

from harness import device

DESKTOP_BYTES = 32 << 20
FOLDER, LOOKED_AT = device.CPU_FOLDER, device._cpu_caches


def caches() -> dict[int, int]:
    found = LOOKED_AT()
    return {level: min(size, DESKTOP_BYTES) for level, size in found.items()} if device.CPU_FOLDER == FOLDER else found


device._cpu_caches = caches
