"""What the guards of a version need not ask."""

from __future__ import annotations

import re

from compiler.draft.expressions import loads_of
from compiler.draft.tensors import Buffer
from compiler.program import KernelProgram


def is_gathered(program: KernelProgram, buffer: Buffer) -> bool:
    """Whether it is only read at places that are computed, in 64 bits."""
    loads = [load for kernel in program.kernels for load in loads_of(kernel.roots) if load.args[0] is buffer]
    return bool(loads) and all(load.op == "load_at" for load in loads)


def always(guard: str) -> bool:
    """Whether a guard of numbers alone holds; one that fails is an error of the schedule's."""
    if re.search(r"[a-z]", guard.replace("INT64_C", "")):
        return False
    return bool(eval(guard.replace("INT64_C", "").replace("/", "//"), {"__builtins__": {}}))
