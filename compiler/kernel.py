"""Kernels whose elements go in packs, and which definitions share one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import sympy

from compiler.draft.expressions import indices_of
from compiler.draft.index import FloorDiv, Index, Modulo, flatten, product, unflatten
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import FLAT, ROW, Kernel, Member, Partition, _merged, reads_of
from compiler.draft.tensors import Buffer, Definition, Library
from compiler.draft.tensors import Program as Lowered
from compiler.strides import LEAST_EXTENT, goes_across, is_window, steps_of_loads

if TYPE_CHECKING:
    from compiler.row_tiles import TiledRows
    from compiler.turned import TurnedKernel

PHASES = "phases"
"""The layout of what goes by phases (phases.py), which nothing joins."""
SHORT_FOLD, CPU_SHORT_FOLD = 32, 15
"""Folded elements, a number known now, up to which one thread does them alone; on a processor fewer than a register's lanes."""


LONGEST_WINDOW = 256
"""The same of windows, whose elements are their neighbours' too: 49 of an image went by a warp each."""
LONGEST_TILED = 2048
"""Elements of a row that lies apart up to which a block has some whole; longer ones are read again for each reduction."""
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
    row_of_packs: Index = field(default_factory=lambda: sympy.Integer(1))
    """Elements of the axes that packs go along together, of which they divide none; one where there are no such."""
    chunked: Index | None = None
    """How many elements its rows have, all together, where these are chunks of which the last may be shorter."""
    crosses: bool = False
    """Whether it folds along an axis that what it reads does not lie side by side along."""
    tiled: TiledRows | None = None
    """The same by tiles, where rows lie apart and beside each other."""
    turned: TurnedKernel | None = None
    """The same by tiles, where it reads along one axis and writes along another."""

    @property
    def parts(self) -> dict[Index, Index]:
        """Those of members that write shorter rows than the kernel reduces."""
        return {at: end for at, end in self.loops.items() if any(at in m.places[0].free_symbols for m in self.members)}

    @property
    def writes_steps(self) -> bool:
        """Whether a thread writes in its loop, as a state's elements beside their sums."""
        looped = self.layout == FLAT and bool(self.inner)
        return looped and any(not (member.definition.reduced or member.per_row) for member in self.members)


class Fusion(Partition):
    """Definitions of a folder: every element's place is told by a pack and a lane in it."""

    def __init__(
        self,
        lowered: Lowered,
        outputs: set[Buffer],
        vector: int,
        short_fold: int,
        phases: Mapping[Definition, PackedKernel],
    ) -> None:
        """`phases`: kernels of definitions that share none with others."""
        self.vector, self.short_fold, self.phases = vector, short_fold, phases
        self.lane = lowered.ranges.variable(lowered.name("lane"), vector)
        super().__init__(lowered, outputs)

    def _begin(self, definition: Definition) -> Kernel:
        return self.phases.get(definition) or super()._begin(definition)

    def _join(self, kernel: Kernel, definition: Definition, position: int) -> bool:
        apart = kernel.layout == PHASES or definition in self.phases
        return not apart and super()._join(kernel, definition, position)

    def _drop_unused(self) -> None:
        for kernel in self._kernels_of_rows(self.steps):
            for before in self._kernels_of_rows(self.steps[: self.steps.index(kernel)]):
                self._merge(before, kernel)
        super()._drop_unused()

    def _kernels_of_rows(self, steps: list[Kernel | Library]) -> list[PackedKernel]:
        return [
            s
            for s in steps
            if isinstance(s, PackedKernel) and type(s) is PackedKernel and s.layout == ROW and not s.loops
        ]

    def _merge(self, before: PackedKernel, kernel: PackedKernel) -> None:
        """A kernel takes over what an earlier one finds out of the same rows, where both read the same: of two softmaxes side by side."""
        first, at = self.steps.index(before), self.steps.index(kernel)
        made, reads = set(before.made), set(reads_of(kernel))
        between = {one for step in self.steps[first + 1 : at] for one in reads_of(step)}
        needs = reads & made and reads & set(reads_of(before)) - made
        if (
            not needs
            or between & made
            or (made & self.outputs and at > first + 1)
            or not self._same_rows(before, kernel)
        ):
            return
        wider = self._space(kernel.ranges, kernel.reduced, before.members[0].definition)
        for old in (*before.members, *kernel.members):
            member = self._member(wider, old.definition, at)
            if member is None or wider.loops:
                return
            wider.members.append(member)
        kernel.__dict__.update(wider.__dict__, order=kernel.order)
        self.steps.remove(before)

    def _same_rows(self, one: Kernel, other: Kernel) -> bool:
        return _merged(one.ranges, one.reduced) == _merged(other.ranges, other.reduced)

    def _layout(self, kernel: Kernel, definition: Definition) -> str:
        length = kernel.length
        if not kernel.reduced or length == 1:
            return FLAT
        last = max(axis for axis, size in enumerate(kernel.ranges) if size != 1)
        if last not in kernel.reduced:
            return FLAT
        # A thread that folded a few neighbours alone would load them one by one.
        whole = self.vector > 1 and _is_multiple(kernel.ranges[last], self.vector)
        most = LONGEST_WINDOW if is_window(definition, self.program.ranges) else self.short_fold
        if not whole and length.is_Integer and length <= most:
            return FLAT
        assert isinstance(kernel, PackedKernel)
        kernel.crosses = self._folds_across(kernel, definition)
        kernel.crosses = kernel.crosses and self.program.estimate(length) > LONGEST_TILED
        return FLAT if kernel.crosses else ROW

    def _folds_across(self, kernel: Kernel, definition: Definition) -> bool:
        """Whether the largest tensor that is folded lies side by side along the last kept axis: threads then go along that."""
        long = [axis for axis, size in enumerate(kernel.ranges) if size != 1]
        folded, kept = ([axis for axis in long if (axis in kernel.reduced) == one] for one in (True, False))
        estimate = self.program.estimate
        if self.short_fold != SHORT_FOLD or len(folded) != 1 or not kept or kernel.length.is_Integer:
            return False
        loads = steps_of_loads(definition, self.program.ranges)
        largest = max(loads, key=lambda found: estimate(found[0].args[0].elements), default=None)
        wide = estimate(kernel.ranges[kept[-1]]) >= LEAST_EXTENT
        return largest is not None and wide and goes_across(largest[1], kept[-1], folded[0])

    def _turns(self, kernel: Kernel, definition: Definition) -> bool:
        """Whether a map of other axes than the kernel's goes across what it reads: tiles of its own serve it better."""
        if kernel.reduced or definition.reduced or definition.ranges == kernel.ranges or self.short_fold != SHORT_FOLD:
            return False
        long = [axis for axis, size in enumerate(definition.ranges) if size != 1]
        wide = [axis for axis in long if self.program.estimate(definition.ranges[axis]) >= LEAST_EXTENT]
        if not wide or wide[-1] != long[-1]:
            return False
        found = steps_of_loads(definition, self.program.ranges)
        return any(goes_across(steps, axis, long[-1]) for _, steps in found for axis in wide[:-1])

    def _member(self, kernel: Kernel, definition: Definition, position: int) -> Member | None:
        """Beside reductions of tall columns only what follows from them for each column: else a thread would go along a column alone."""
        if kernel.members and self._turns(kernel, definition):
            return None
        found = super()._member(kernel, definition, position)
        if found is not None and definition.reduced and isinstance(kernel, PackedKernel):
            length = self._chunked(kernel, definition)
            if kernel.members and length != kernel.chunked:
                return None
            kernel.chunked = length
            if length is not None and definition.chunked is not None:
                found.value = definition.chunked[1](kernel.axes)
        later = found is not None and (found.stage > 0 if definition.reduced else not found.per_row)
        return None if later and self._is_tall(kernel) else found

    def _is_tall(self, kernel: Kernel) -> bool:
        if isinstance(kernel, PackedKernel) and kernel.crosses:
            return True
        if kernel.layout != FLAT or all(end.is_Integer for _, end in kernel.inner):
            return False
        estimate = self.program.estimate
        return estimate(kernel.rows) < BUSY_THREADS * self.vector and estimate(kernel.length) > SHORT_FOLD

    def _axes(self, kernel: Kernel, definition: Definition) -> tuple[list[Index], bool] | None:
        chunked = kernel.chunked if isinstance(kernel, PackedKernel) and not definition.reduced else None
        if chunked is not None and sympy.expand(product(definition.ranges) - chunked) == 0:
            return self._position_in(kernel, flatten(kernel.axes, kernel.ranges), definition.ranges), False
        found = super()._axes(kernel, definition)
        return found or (self._in_part(kernel, definition) if isinstance(kernel, PackedKernel) else None)

    def _chunked(self, kernel: PackedKernel, definition: Definition) -> Index | None:
        """How many elements a fold of chunks is of, where its loop can end with them: then maps of these elements may join it."""
        if definition.chunked is None or kernel.layout != ROW or self.short_fold != SHORT_FOLD:
            return None
        length = definition.chunked[0]
        return length if kernel.width == 1 or _is_multiple(length, kernel.width) else None

    def _in_part(self, kernel: PackedKernel, definition: Definition) -> tuple[list[Index], bool] | None:
        """A map over the same rows, each of fewer elements than the kernel reduces: two values in a byte. It has a loop of its own."""
        outer, rows = 0, sympy.Integer(1)
        while outer < len(definition.ranges) and sympy.expand(rows - kernel.rows) != 0:
            rows, outer = rows * definition.ranges[outer], outer + 1
        inner: tuple[Index, ...] = definition.ranges[outer:]
        if sympy.expand(rows - kernel.rows) != 0:  # rows end within an axis: groups of a line
            inner = (sympy.cancel(product(definition.ranges) / kernel.rows),)
            if not inner[0].is_Integer:
                return None
        saved = sympy.expand(kernel.length - product(inner))
        shorter = saved != 0 and all(term.as_coeff_Mul()[0] > 0 for term in sympy.Add.make_args(saved))
        if kernel.layout != ROW or definition.reduced or not inner or not shorter or self.short_fold != SHORT_FOLD:
            return None
        along, pack, width = self._packed("part", product(inner), inner[-1])
        if width != kernel.width:
            return None
        count = product(inner) / width
        alike = next((at for at, end in kernel.loops.items() if sympy.expand(end - count) == 0), pack)
        along, kernel.loops[alike] = along.subs(pack, alike), count  # parts of one length share a loop
        variables = self.program.ranges
        if sympy.expand(rows - kernel.rows) != 0:
            return unflatten(kernel.row * inner[0] + along, definition.ranges, variables), False
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
            first = self._first_of_row(kept, reduced, definition)
            kernel.row, kernel.pack, kernel.width = self._packed("pack", product(kept), product(kept[first:]))
            kernel.row_of_packs = product(kept[first:]) if product(kept[first + 1 :]) != 1 else sympy.Integer(1)
            loops = [variables.variable(name(f"step_{axis}"), size) for axis, size in enumerate(folded)]
            kernel.inner = [(loop, end) for loop, end in zip(loops, folded, strict=True) if end != 1]
            inner = iter(loops)
        kernel.row_name = "row"
        outer = iter(self._axes_at(kernel.row, kept, len(kept) if kernel.layout == ROW else first))
        kernel.axes = [next(inner) if axis in reduced else next(outer) for axis in range(len(ranges))]
        return kernel

    def _axes_at(self, element: Index, sizes: list[Index], first: int) -> list[Index]:
        """Where an element is, the axes from `first` on told from their own element: packs of all of these divide no axis of them."""
        *outer, along = unflatten(element, [*sizes[:first], product(sizes[first:])], self.program.ranges)
        return [*outer, *unflatten(along, sizes[first:], self.program.ranges)]

    def _position_in(self, kernel: Kernel, element: Index, ranges: tuple[Index, ...]) -> list[Index]:
        if isinstance(kernel, PackedKernel) and kernel.row_of_packs != 1:
            for first in range(len(ranges)):
                if sympy.expand(product(ranges[first:]) - kernel.row_of_packs) == 0:
                    return self._axes_at(element, list(ranges), first)
        return super()._position_in(kernel, element, ranges)

    def _first_of_row(self, kept: list[Index], reduced, definition: Definition) -> int:
        """The axis from which on elements lie in rows of packs: the last one, or one before it with which it is as one wherever it is read."""
        last = max((axis for axis, size in enumerate(kept) if size != 1), default=0)
        if self.vector == 1 or _is_multiple(kept[last] if kept else sympy.Integer(1), self.vector):
            return last
        for first in range(last - 1, -1, -1):
            if not kept[first].is_Integer:
                break
            if _is_multiple(product(kept[first:]), self.vector):
                along, *_ = self._packed("probe", product(kept), product(kept[first:]))
                outer = iter(self._axes_at(along, kept, first))
                inner = (self.program.ranges.named(f"read{axis}", size) for axis, size in enumerate(definition.ranges))
                at = [step if axis in reduced else next(outer) for axis, step in enumerate(inner)]
                indices = indices_of([definition.element(at)])
                if all(self.lane not in atom.free_symbols for i in indices for atom in i.atoms(FloorDiv, Modulo)):
                    return first
        return last
