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
from compiler.phases import FOLDS, NTHS, REACH, PhasesKernel
from compiler.products import ProductKernel

if TYPE_CHECKING:
    from compiler.program import KernelProgram

MULTIPROCESSORS, CLUSTER, LAUNCH_S, ELEMENTS_A_SECOND = 132, 8, 2e-6, 8e11
"""An H100's or H200's: multiprocessors, blocks that share a row at most, what a kernel more takes, elements of four bytes that its memory brings."""
BLOCK_ELEMENTS_A_SECOND = 2e9
"""What phases of one block get done, each after a barrier: 327,680 elements of a step of Sinkhorn's in 156 us, 35 as four kernels (H200)."""


def is_small(program: KernelProgram, other: KernelProgram, traced: Traced) -> bool:
    """Whether phases in one block are sooner done than the kernels of the other program."""
    (kernel,), values = program.kernels, program.values(traced.hints)
    assert isinstance(kernel, PhasesKernel)
    work, units = (int(index.subs(values)) for index in (kernel.work, kernel.units))
    rounds = -(-units // (2 * MULTIPROCESSORS))
    tiles = any(isinstance(one, ProductKernel) for one in other.kernels)
    others = work / (PRODUCTS_A_SECOND if tiles else ELEMENTS_A_SECOND)
    return rounds * (work / max(1, units)) / BLOCK_ELEMENTS_A_SECOND <= len(other.kernels) * LAUNCH_S + others


def is_spread(program: KernelProgram, traced: Traced) -> bool:
    """Whether the whole grid has so much to do in phases, or a block so much of a product of matrices, that each is better done in the form that
    suits it."""
    (kernel,), values = program.kernels, program.values(traced.hints)
    assert isinstance(kernel, PhasesKernel)
    alone = any(phase.definition.kind in (*NTHS, REACH) for phase in kernel.phases)
    work = int(kernel.work.subs(values))
    if any(phase.definition.is_product for phase in kernel.phases):
        return work >= PRODUCT_ELEMENTS
    return bool(kernel.units == 1) and not alone and work >= SPREAD_ELEMENTS


SPREAD_ELEMENTS = 1 << 18
"""Below that, phases of one block, or some launches of little, are as fast (an estimate)."""
PRODUCTS_A_SECOND = 1e13
"""Multiplications that tiles do at least."""
PRODUCT_ELEMENTS = 1 << 24
"""Multiplications from which on a product goes by tiles (an estimate: a warp to a sum does some 3e12 a second, tiles of 16-bit numbers 1e14)."""


def _is_few_and_long(rows: int, length: int) -> bool:
    """Whether rows leave so much of a device idle, although blocks share each, that parts of them and another kernel that joins these are
    sooner done."""
    idle = MULTIPROCESSORS / min(MULTIPROCESSORS, CLUSTER * max(1, rows)) - 1
    return rows * length / ELEMENTS_A_SECOND * idle > LAUNCH_S


def has_few_long_rows(program: KernelProgram, traced: Traced) -> bool:
    """Whether a kernel has few rows, and long ones."""
    values = program.values(traced.hints)
    sizes = [(int(k.rows.subs(values)), int(k.length.subs(values))) for k in program.kernels if k.layout == ROW]
    return any(_is_few_and_long(rows, length) for rows, length in sizes)


def split_long(lowered: Lowered, hints: dict[sympy.Symbol, int]) -> None:
    """Few and long rows are folded in parts; `hints`: sizes as they are."""
    definitions: list[Definition] = []
    for one in lowered.definitions:
        rows, length = (int(product(one.ranges[axis] for axis in axes).subs(hints)) for axes in (one.kept, one.reduced))
        long = one.kind in FOLDS and _is_few_and_long(rows, length)
        definitions += (split_fold(lowered, one) if long else None) or [one]
    lowered.definitions = definitions
