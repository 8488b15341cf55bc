"""Kernels whose elements go in packs, and which definitions share one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sympy

from compiler.draft.index import Index, product, unflatten
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import FLAT, ROW, Kernel, Member, Partition
from compiler.draft.tensors import Buffer, Definition
from compiler.draft.tensors import Program as Lowered

if TYPE_CHECKING:
    from compiler.turned import TurnedKernel

SHORT_FOLD, CPU_SHORT_FOLD = 32, 15
"""Folded elements, a number known now, up to which one thread does them alone; on a processor fewer than a register's lanes."""


BUSY_THREADS = 65536
"""Threads below which a device is not busy with a pack of columns each."""


@dataclass(eq=False)
class PackedKernel(Kernel):
    """A kernel whose innermost loop steps over packs of `width` neighbouring elements."""

    pack: Index = field(default_factory=lambda: sympy.Integer(0))
    """The variable that counts packs."""
    width: int = 1
    loops: dict[Index, Index] = field(default_factory=dict)
    """Variables of packs of shorter rows, and how many these have: see `parts`."""
    turned: TurnedKernel | None = None
    """The same by tiles, where it reads along one axis and writes along another."""

    @property
    def parts(self) -> dict[Index, Index]:
        """Those of members that write shorter rows than the kernel reduces."""
        return {at: end for at, end in self.loops.items() if any(at in m.places[0].free_symbols for m in self.members)}


class Fusion(Partition):
    """Definitions of a folder: every element's place is told by a pack and a lane in it."""

    def __init__(self, lowered: Lowered, outputs: set[Buffer], vector: int, short_fold: int) -> None:
        self.vector, self.short_fold = vector, short_fold
        self.lane = lowered.ranges.variable(lowered.name("lane"), vector)
        super().__init__(lowered, outputs)

    def _layout(self, kernel: Kernel, definition: Definition) -> str:
        length = kernel.length
        if not kernel.reduced or length == 1:
            return FLAT
        last = max(axis for axis, size in enumerate(kernel.ranges) if size != 1)
        if last not in kernel.reduced:
            return FLAT
        # A thread that folded a few neighbours alone would load them one by one.
        whole = self.vector > 1 and _is_multiple(kernel.ranges[last], self.vector)
        return ROW if whole or not length.is_Integer or length > self.short_fold else FLAT

    def _member(self, kernel: Kernel, definition: Definition, position: int) -> Member | None:
        """Beside reductions of tall columns only what follows from them for each column: else a thread would go along a column alone."""
        found = super()._member(kernel, definition, position)
        later = found is not None and (found.stage > 0 if definition.reduced else not found.per_row)
        return None if later and self._is_tall(kernel) else found

    def _is_tall(self, kernel: Kernel) -> bool:
        if kernel.layout != FLAT or all(end.is_Integer for _, end in kernel.inner):
            return False
        estimate = self.program.estimate
        return estimate(kernel.rows) < BUSY_THREADS * self.vector and estimate(kernel.length) > SHORT_FOLD

    def _axes(self, kernel: Kernel, definition: Definition) -> tuple[list[Index], bool] | None:
        found = super()._axes(kernel, definition)
        return found or (self._in_part(kernel, definition) if isinstance(kernel, PackedKernel) else None)

    def _in_part(self, kernel: PackedKernel, definition: Definition) -> tuple[list[Index], bool] | None:
        """A map over the same rows, each of fewer elements than the kernel reduces: two values in a byte. It has a loop of its own."""
        outer, rows = 0, sympy.Integer(1)
        while outer < len(definition.ranges) and sympy.expand(rows - kernel.rows) != 0:
            rows, outer = rows * definition.ranges[outer], outer + 1
        inner = definition.ranges[outer:]
        saved = sympy.expand(kernel.length - product(inner))
        shorter = saved != 0 and all(term.as_coeff_Mul()[0] > 0 for term in sympy.Add.make_args(saved))
        if kernel.layout != ROW or definition.reduced or not inner or not shorter or self.short_fold != SHORT_FOLD:
            return None
        along, pack, width = self._packed("part", product(inner), inner[-1])
        if width != kernel.width:
            return None
        kernel.loops[pack] = product(inner) / width
        variables = self.program.ranges
        return [
            *unflatten(kernel.row, definition.ranges[:outer], variables),
            *unflatten(along, inner, variables),
        ], False

    def _packed(self, name: str, count: Index, last: Index) -> tuple[Index, Index, int]:
        """(the variable in packs, its loop variable, elements of a pack) of `count` elements in rows of `last`."""
        variables = self.program.ranges
        width = self.vector if _is_multiple(last, self.vector) else 1
        pack = variables.named(self.program.name(name), sympy.expand(count / width))
        return (width * pack + self.lane if width > 1 else pack), pack, width

    def _space(self, ranges, reduced, definition: Definition) -> PackedKernel:
        variables, name = self.program.ranges, self.program.name
        kept = [size for axis, size in enumerate(ranges) if axis not in reduced]
        folded = [size for axis, size in enumerate(ranges) if axis in reduced]
        kernel = PackedKernel(tuple(ranges), frozenset(reduced), sympy.Integer(0), [])
        kernel.layout = self._layout(kernel, definition)
        if kernel.layout == ROW:
            kernel.row = variables.variable(name("row"), product(kept))
            along, kernel.pack, kernel.width = self._packed("pack", product(folded), folded[-1])
            kernel.inner = [(along, product(folded))]
            inner = iter(unflatten(along, folded, variables))
        else:
            last = next((size for size in reversed(kept) if size != 1), sympy.Integer(1))
            kernel.row, kernel.pack, kernel.width = self._packed("pack", product(kept), last)
            loops = [variables.variable(name(f"step_{axis}"), size) for axis, size in enumerate(folded)]
            kernel.inner = [(loop, end) for loop, end in zip(loops, folded, strict=True) if end != 1]
            inner = iter(loops)
        kernel.row_name = "row"
        outer = iter(unflatten(kernel.row, kept, variables))
        kernel.axes = [next(inner) if axis in reduced else next(outer) for axis in range(len(ranges))]
        return kernel
