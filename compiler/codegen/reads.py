"""How many bytes a thread reads side by side for a pack, from which follows how wide packs are."""

from __future__ import annotations

from compiler.codegen.kernels import SMALL_SHARE, open_text
from compiler.codegen.levels import parts_of
from compiler.draft.index import estimate
from compiler.draft.partition import FLAT, ROW
from compiler.program import KernelProgram, PackedKernel

MANY_NEIGHBOURS = 4
"""Of a lane, from which on threads that read whole packs' worth of them lie far apart."""


def widest_read(program: KernelProgram, kernel: PackedKernel) -> int:
    """Bytes that a thread reads side by side of a large tensor for one pack, where lanes have several neighbours each; 0 where they have few."""
    if kernel.width == 1 or kernel.layout != FLAT or kernel.inner:
        return 0
    text = open_text(program, kernel, narrow=True)
    count = lambda buffer: estimate(buffer.elements, program.lowered.hints)  # noqa: E731
    found = [w for w in text.windows(parts_of(text)[2]) if w.width >= MANY_NEIGHBOURS * kernel.width and not w.edged]
    most = max(map(count, [*program.inputs.values(), *program.outputs.values()]))
    return max((w.width * w.buffer.dtype.itemsize for w in found if SMALL_SHARE * count(w.buffer) > most), default=0)


def own_bytes(program: KernelProgram, kernel: PackedKernel) -> int:
    """Bytes of a pack that a row has to itself, where one pass over rows is all; 0 where it is not, or nothing is in packs."""
    if kernel.width == 1 or kernel.layout != ROW or not kernel.row.is_Symbol:
        return 0
    text = open_text(program, kernel, narrow=True)
    stores, folds, roots = parts_of(text)
    if any(not store.per_row for store in stores) or any(member.stage for member in folds):
        return 0
    return max((w.width * w.buffer.dtype.itemsize for w in text.windows(roots) if kernel.row in w.base.free_symbols), default=0)  # fmt: skip
