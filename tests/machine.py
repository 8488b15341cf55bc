"""Imported by whoever runs tests: what the programs here and those forked from them take this machine for.

Argument sets of a comparison fill half of the last-level cache, and three times it, which takes longer than the samples (a
gigabyte for each case on a server of 260 MiB); cold calls are cold with less, for their lines are flushed.
What the device reaches at most is shown and decides nothing, and is measured anew wherever another test is at work.
A verdict calls a small workload 128, 5,000 and 65,537 times, a second in all, a module with state for another (5,000 times in a row for what happens rarely), and where sizes are free it calls with 65,537 rows: here 2 and 20 times, and
with 1,025 rows, but in the tests of who is found out by more (`whole_checks`).
"""

import os
import shutil
from dataclasses import replace

from harness import device
from harness.checks import crossings
from harness.judge import many_calls, pool, rows
from harness.problems import box
from harness.timing import interleaved, load, neighbours, roofs
from harness.timing.sampling import PROTOCOLS, Protocol

LINKER = ["-fuse-ld=gold"] if shutil.which("ld.gold") else []
"""Of builds that no backend makes: g++'s usual linker takes a quarter of a small one."""
CACHE_BYTES = 4 << 20
CONFIRMED_S, HOST_STEPS = interleaved.CONFIRM_S["cpu"], neighbours.HOST_STEPS
FOLDER, LOOKED_AT = device.CPU_FOLDER, device._cpu_caches


FEWER = {
    many_calls: {"QUICK_S": 0.0, "MANY_S": 0.0, "OTHERS_S": 0.0, "TOGETHER": 2, "LONG_S": 0.0, "LOOKS_S": 0.0},
    rows: {"STATE_S": 0.1},
    box: {"FAR_CALLS": 300},
    neighbours: {"HOST_STEPS": 1 << 10},  # of each input of each comparison a megabyte would be drawn three times
    crossings: {"BEYOND": 1025, "BEYOND_BYTES": crossings.MOST_BYTES["cpu"]},
}
WHOLE = [(module, name, getattr(module, name)) for module, fewer in FEWER.items() for name in fewer]
"""What a verdict is made by elsewhere."""


def caches() -> dict[int, int]:
    found = LOOKED_AT()
    return {level: min(size, CACHE_BYTES) for level, size in found.items()} if device.CPU_FOLDER == FOLDER else found


def short() -> Protocol:
    """As few samples as there may be. Beside other tests a comparison would go on for a second more, in vain: intervals do not
    become narrow there."""
    return replace(PROTOCOLS["cpu"], patience_s=0.0)


def hurry() -> None:
    """For a program of its own that goes through a whole run: short comparisons, and none again of what they leave unclear; nothing
    is compiled from the reference, which takes longer than the rest of such a run."""
    from nodes import contest
    from nodes.compiling import Compilation

    PROTOCOLS["cpu"], contest.MOST = short(), 0
    Compilation.source = Compilation.source_ahead = compile_nothing


def compile_nothing(*_: object) -> tuple[str, str]:
    return "", "these tests are in a hurry"


device._cpu_caches = caches
for _module, _fewer in FEWER.items():
    vars(_module).update(_fewer)
os.fsync = lambda _file: None  # SIGKILL does not care, and of a short run each third second is fsync's
load.others_at_work.__defaults__ = (0.02,)
pool.ARENA_BYTES = 2 << 20  # each of a thousand evaluators would clear 64 MiB, and each worker map them: 50 and 8 ms
interleaved.CONFIRM_S["cpu"] = 4e-3  # beside a small cache long samples are many requests
roofs.MATRIX_SIZE["cpu"] = {"float64": 192, "float32": 256}
