"""Which reductions are kernels of their own that hand on in memory: those that one block, or a few, would take long for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import sympy

from compiler.draft.index import product
from compiler.draft.partition import ROW
from compiler.draft.split import split_fold
from compiler.draft.tensors import Definition
from compiler.draft.tensors import Program as Lowered
from compiler.frontend import Traced
from compiler.phases import FOLDS, PhasesKernel

if TYPE_CHECKING:
    from compiler.program import KernelProgram

SMALL_UNIT = 1 << 14
"""Elements of all phases of a unit up to which its block is done before other kernels would have begun."""


def is_small(program: KernelProgram, traced: Traced) -> bool:
    """Whether phases in one block are little to do."""
    (kernel,), values = program.kernels, program.values(traced.hints)
    assert isinstance(kernel, PhasesKernel)
    return int(kernel.work.subs(values)) <= SMALL_UNIT * int(kernel.units.subs(values))


LONG_ROW = 1 << 17
"""Elements of a row from which on one row is shared by the whole device, in parts that another kernel joins."""
FEW_ROWS = 16
"""Rows up to which, in clusters of eight blocks, they leave most of a device idle."""


def has_few_long_rows(program: KernelProgram, traced: Traced) -> bool:
    """Whether a kernel has few rows, and long ones."""
    values = program.values(traced.hints)
    sizes = [(int(k.rows.subs(values)), int(k.length.subs(values))) for k in program.kernels if k.layout == ROW]
    return any(rows <= FEW_ROWS and length >= LONG_ROW for rows, length in sizes)


def split_long(lowered: Lowered, hints: dict[sympy.Symbol, int]) -> None:
    """Few and long rows are folded in parts; `hints`: sizes as they are."""
    definitions: list[Definition] = []
    for one in lowered.definitions:
        rows, length = (int(product(one.ranges[axis] for axis in axes).subs(hints)) for axes in (one.kept, one.reduced))
        long = one.kind in FOLDS and rows <= FEW_ROWS and length >= LONG_ROW
        definitions += (split_fold(lowered, one) if long else None) or [one]
    lowered.definitions = definitions
