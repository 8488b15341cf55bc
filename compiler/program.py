"""What a kernel computes, as definitions over index spaces, and which of them share a kernel.

A `KernelProgram` is made of a traced reference for one pack width: `packs` names axes that are multiples of it, so that `cols`
is `8 * cols_8` and the index arithmetic itself proves what may be loaded at once. Without packs nothing is assumed.
"""

from __future__ import annotations

import contextvars
import math
import threading
from dataclasses import dataclass, field

import sympy
import torch

from compiler import (
    bits,  # noqa: F401 -- it fills the table
    convolutions,
    indexing,
    operators,
    ordered,
    selects,
)
from compiler.apart import has_few_long_rows, is_small, is_spread, split_long
from compiler.draft import drafting  # noqa: F401 -- it imports the files that fill the table
from compiler.draft.expressions import COMPUTED, loads_of
from compiler.draft.index import FloorDiv, Index, estimate, product, size_symbol
from compiler.draft.lowering import QUOTIENTS, SIZES, Quotients, lower, name_quotients, size_of
from compiler.draft.names import RESERVED
from compiler.draft.packing import _is_multiple
from compiler.draft.partition import ROW, Kernel
from compiler.draft.tensors import Buffer, NoDraft, SizeNeeded
from compiler.draft.tensors import Program as Lowered
from compiler.extents import dtype_of, memory_of, place_of, scalar_of, shape_of, strides_of
from compiler.frontend import NoProgram, Traced, extent
from compiler.in_place import check_memory
from compiler.invariants import keep_invariants
from compiler.kernel import PHASES, SHORT_FOLD, Fusion, PackedKernel
from compiler.outputs import is_given, write_map, write_output, write_scattered
from compiler.phases import FOLDS
from compiler.products import products_of
from compiler.row_tiles import tile_rows
from compiler.selects import JOINED, SelectedProgram, pieces_of, planes_of
from compiler.steps import steps_of
from compiler.streams import streams_of
from compiler.turned import turn
from compiler.units import phases_alone, phases_of
from kernels.spec import Spec, Tensor, expression

DISTINCT = ("distinct", "permutation")
"""Values of integers of which no two name one place."""
SMALL_PART = 8
"""Tensors of fewer elements than the largest one's by this factor do not ask for packs."""
LONGEST_HINT = 4096
"""Lowerings choose other forms for longer rows; here the schedule does."""
MOST_DIVISOR = 128
NARROW_FLOATS = (torch.float16, torch.bfloat16)
OURS = {"row", "lane"}
"""Names of loop variables here, which the drafter's texts have another use for."""
_LOWERING = threading.Lock()
"""Expressions are interned in a table of the process."""
LAYERS = (operators, convolutions, indexing, selects, ordered)
"""Over the drafter's table; the last one decides first."""
for _layer in LAYERS:
    _layer.extend_table()


@dataclass
class KernelProgram:
    """A reference's meaning at one pack width."""

    spec: Spec
    dtype: str
    vector: int
    packs: dict[str, int]
    """Axis -> what it is a multiple of."""
    sizes: dict[str, Index]
    """Axis -> what it is here, such as 8 * cols_8."""
    symbols: dict[sympy.Symbol, tuple[str, int | str]]
    """Open size -> the axis and what that is divided by to get it: a number, or another axis that divides it."""
    lowered: Lowered
    inputs: dict[str, Buffer]
    outputs: dict[str, Buffer]
    kernels: list[PackedKernel]
    lane: Index
    """The variable of an element in its pack."""
    quotients: dict[sympy.Symbol, Index] = field(default_factory=dict)
    """Sizes that are quotients of others."""
    scratch: list[Buffer] = field(default_factory=list)
    """What one kernel makes and a later one reads: in memory that the entry asks for."""
    context: contextvars.Context = field(default_factory=contextvars.copy_context)
    """In which elements are asked for: what sizes are called."""
    exact: bool = False
    """Whether no function may be approximate, whatever results are stored in."""

    @property
    def rounds_to_halves(self) -> bool:
        """Whether results of 16 bits hide what the device's approximate functions lose."""
        return self.dtype in ("float16", "bfloat16") and not self.exact

    def values(self, axes: dict[str, int]) -> dict[sympy.Symbol, int]:
        """Of the open sizes."""
        found = sizes_at(self.symbols, axes)
        for symbol, index in self.quotients.items():
            found[symbol] = int(index.subs(found))
        return found

    def fits(self, axes: dict[str, int]) -> bool:
        """Whether the sizes are multiples of what they are taken for multiples of."""
        return not any(axes[axis] % (by if isinstance(by, int) else axes[by]) for axis, by in self.symbols.values())

    def guards(self) -> list[str]:
        return [f"{axis} % {by} == 0" for axis, by in dict.fromkeys(self.symbols.values()) if by != 1]

    def stored(self, kernel: PackedKernel) -> set[Buffer]:
        stored = {*self.outputs.values(), *self.scratch}
        return {out for out in kernel.made if out in stored}


def sizes_at(symbols: dict[sympy.Symbol, tuple[str, int | str]], axes: dict[str, int]) -> dict[sympy.Symbol, int]:
    """What the open sizes are where the axes are so long; `symbols`: see KernelProgram."""
    return {s: axes[axis] // (by if isinstance(by, int) else axes[by]) for s, (axis, by) in symbols.items()}


def pack_axes(spec: Spec, dtype: str, vector: int) -> dict[str, int]:
    """Axes that must be multiples of `vector` so that the large tensors' rows are, one by one."""
    first = next((w for w in spec.workloads if w.timed and w.dtype == dtype), spec.workloads[0])
    counts = {t.name: _elements(spec, t, first.axes) for t in spec.tensors}
    most = max(counts.values())
    found: dict[str, int] = {}
    for tensor in spec.tensors:
        if counts[tensor.name] * SMALL_PART < most or tensor.shape[-1].isdigit():
            continue
        sizes = {axis: size_symbol(axis) for axis in spec.axes}
        last = extent(tensor.shape[-1], sizes)
        for whole in (last, *(extent(stride, sizes) for stride in tensor.strides if stride != "1")):
            if not _is_multiple(whole, vector):
                found |= dict.fromkeys((str(symbol) for symbol in whole.free_symbols), vector)
    return found


def common_divisors(spec: Spec) -> dict[str, int]:
    """Axis -> the power of two that divides it in every workload: what a reference that splits or groups it must assume.

    Of axes that the entry is given: the host can ask no other."""
    found = {}
    given = {argument.name for argument in spec.arguments if argument.kind != "tensor"}
    for axis in (axis for axis in spec.axes if axis in given):
        common = math.gcd(*(workload.axes[axis] for workload in spec.workloads))
        by = min(MOST_DIVISOR, common & -common)
        if by > 1:
            found[axis] = by
    return found


def _elements(spec: Spec, tensor: Tensor, axes: dict[str, int]) -> int:
    if tensor.touched:
        return int(expression(tensor.touched, axes))
    count = 1
    for size in spec.shape(tensor, axes):
        count *= size
    return count


UNROLLED = 16
"""Elements up to which a reduction may be an expression."""
IN_MEMORY = "in memory"
MIXED = "mixed"
"""What goes by phases of the whole grid, each a kernel, beside kernels of all else, what they hand on in memory."""
APART = "apart"
"""Each reduction by itself, kernels of their own, what they hand on in memory."""
COPIED = "copied"
"""The same, beside a copy of what is changed in place, where threads would read what others write."""
COPIED_IN_MEMORY = "copied, in memory"
THROUGH_MEMORY = (IN_MEMORY, COPIED_IN_MEMORY)
REDUCTIONS = ("each by itself", "unrolled", "rows divided", "repeated")
"""How reductions are taken, the first with which there is a program: every one as it stands; those of a few elements as expressions; those
of a row's few parts as the row's; small ones by every thread that needs them."""


def lower_program(
    spec: Spec, traced: Traced, dtype: str, vector: int, in_memory: bool = False, short_fold: int = SHORT_FOLD
) -> KernelProgram:
    """The reference as kernels for one pack width; `in_memory`: see phases.py. Raises NoProgram."""
    packs = pack_axes(spec, dtype, vector) if vector > 1 else {}
    divisors = {axis: max(by, packs.get(axis, 1)) for axis, by in common_divisors(spec).items()}
    multiples: dict[str, str] = {}
    apart = contextvars.copy_context().run  # what sizes are called ends with a lowering
    with _LOWERING:
        failure: NoDraft | None = None
        spare: KernelProgram | None = None
        small: KernelProgram | None = None
        pairs = [(assumed, in_pieces) for assumed in (packs, packs | divisors) for in_pieces in (True, False)]
        changes = any(tensor.role == "inout" for tensor in spec.tensors)
        ways = THROUGH_MEMORY[: 1 + changes]
        kept = [(assumed, False, how) for how in ways for assumed in ({}, divisors)]
        tried = [(*pair, how) for how in (*REDUCTIONS, APART) for pair in pairs] + kept[:2]
        tried = kept if in_memory else tried + [(*pair, COPIED) for pair in pairs if changes] + kept[2:]
        while tried:
            assumed, in_pieces, how = tried.pop(0)
            try:
                width = 1 if how in THROUGH_MEMORY else vector
                rest = multiples, in_pieces, how, short_fold
                found = apart(_lowered, spec, traced, dtype, width, assumed, *rest)
                wider = {} if how in THROUGH_MEMORY else _wider(found)
                found = apart(_lowered, spec, traced, dtype, vector, wider, *rest) if wider else found
                if how == REDUCTIONS[0] and folds_neighbours(found):
                    small, tried = found, [one for one in tried if one[2] == "unrolled"][:1]
                    continue
                if how in REDUCTIONS and has_few_long_rows(found, traced):
                    spare, tried = found, [one for one in tried if one[2] == APART]
                elif how == APART and spare is None and not any(kernel.crosses for kernel in found.kernels):
                    spare, tried = found, kept[:2]
                elif how == IN_MEMORY and spare is not None:
                    return found if is_small(found, spare, traced) else spare
                elif how == IN_MEMORY and not in_memory and short_fold == SHORT_FOLD and is_spread(found, traced):
                    mixed = (
                        apart(_try, spec, traced, dtype, vector, a, multiples, in_pieces, MIXED, short_fold)
                        for a in (packs, packs | divisors)
                    )
                    return next((one for one in mixed if one is not None), found)
                else:
                    return found
            except indexing.MemoryNeeded:
                failure, tried = None, kept
            except NoDraft as none:
                if small is not None and not tried:
                    return small
                pair = _multiple(spec, none) if isinstance(none, SizeNeeded) else None
                if pair is not None and pair[0] not in multiples and pair[1] not in multiples:
                    multiples[pair[0]] = pair[1]
                    tried.insert(0, (assumed, in_pieces, how))
                    continue
                failure = none if "size" in str(failure) else failure or none
        if spare is not None:
            return spare
        raise NoProgram(str(failure)) from None


def _try(*arguments) -> KernelProgram | None:
    """The program, if there is one that is not phases of one kernel."""
    try:
        found = _lowered(*arguments)
    except (NoDraft, NoProgram):
        return None
    return found if len(found.kernels) > 1 or found.kernels[0].layout != PHASES else None


def folds_neighbours(program: KernelProgram) -> bool:
    """Whether every short reduction is of groups of neighbours, each read by one thread alone: as an expression it loads them in packs."""
    short = [k for k in program.kernels if k.reduced and k.length.is_Integer and 1 < k.length <= UNROLLED]
    return bool(short) and all(map(_folds_neighbours, short))


def _folds_neighbours(kernel: PackedKernel) -> bool:
    long = [axis for axis, size in enumerate(kernel.ranges) if size != 1]
    kept = [axis for axis in long if axis not in kernel.reduced]
    folds = [m for m in kernel.members if m.definition.reduced]
    alone = all(m.per_row or (m in folds and m.stage == 0 and m.definition.kind in JOINED) for m in kernel.members)
    if not kept or long[-1] not in kernel.reduced or not alone:
        return False
    at = [sympy.Symbol(f"read{axis}", integer=True, nonnegative=True) for axis in range(len(kernel.ranges))]
    loads = loads_of([m.definition.element(at) for m in folds])
    places = [sympy.expand(load.args[1]) for load in loads if load.op == "load"]
    size, last, before = kernel.ranges[long[-1]], at[long[-1]], at[kept[-1]]
    return any(p.coeff(last) == 1 and sympy.expand(p.coeff(before)) in (1, size) for p in places)


def _wider(program: KernelProgram) -> dict[str, int]:
    """Packs of which a half or a quarter of an axis is whole ones too, where the timed workloads allow it: a rotation's halves; or all of it: a group's channels."""
    packs = dict(program.packs)
    workloads = [w for w in program.spec.workloads if w.timed and not w.held_out and w.dtype == program.dtype]
    elements = [estimate(product(kernel.ranges), program.lowered.hints) for kernel in program.kernels]
    for kernel, count in zip(program.kernels, elements, strict=True):
        own = [size for axis, size in enumerate(kernel.ranges) if (axis in kernel.reduced) == (kernel.layout == ROW)]
        last = next((size for size in reversed(own) if size != 1), sympy.Integer(1))
        part = int(last.as_coeff_Mul()[0])
        of_rows = kernel.layout == ROW and len(own) > 1 and count == max(elements)
        of_rows |= not program.lowered.copied.isdisjoint(kernel.made)
        if kernel.width > 1 or not (2 - of_rows) <= part < program.vector or program.vector % part:
            continue
        for symbol in last.free_symbols:
            axis, by = program.symbols[symbol]
            wanted = program.packs.get(axis, 1) * program.vector // part
            if (by != 1) == (part > 1) and isinstance(by, int) and all(w.axes[axis] % wanted == 0 for w in workloads):
                packs[axis] = wanted
    return packs if packs != program.packs else {}


BOUNDED = ("range", "uniform", "scaled", "integers", "index")


def is_bounded(tensor: Tensor) -> bool:
    """Whether all that a spec draws of an input lies between two numbers."""
    return all(value.partition(":")[0] in BOUNDED for value in tensor.values)


def _multiple(spec: Spec, needed: SizeNeeded) -> tuple[str, str] | None:
    """(axis, the other one) of a quotient that stopped a lowering, where the first is a multiple of the other in every workload."""
    for quotient in needed.size.atoms(FloorDiv):
        axis, by = map(str, quotient.args)
        if axis in spec.axes and by in spec.axes and all(w.axes[axis] % w.axes[by] == 0 for w in spec.workloads):
            return axis, by
    return None


def _lowered(
    spec: Spec,
    traced: Traced,
    dtype: str,
    vector: int,
    packs: dict[str, int],
    multiples: dict[str, str],
    in_pieces: bool,
    how: str,
    short_fold: int,
) -> KernelProgram:
    """`in_pieces`: the parts of a concatenation are written each by itself. `multiples`: an axis is one of another.
    `how`: see REDUCTIONS."""
    sizes: dict[str, Index] = {}
    hints: dict[sympy.Symbol, int] = {}
    symbols: dict[sympy.Symbol, tuple[str, int | str]] = {}
    packs = {axis: by for axis, by in packs.items() if axis not in multiples}
    for axis in sorted(spec.axes, key=lambda axis: axis in multiples):
        by = multiples.get(axis) or packs.get(axis, 1)
        symbol = size_symbol(axis if by == 1 else f"{axis}_{by}")
        symbols[symbol] = axis, by
        sizes[axis] = (by if isinstance(by, int) else sizes[by]) * symbol
        least = by if isinstance(by, int) else min(traced.hints[by], LONGEST_HINT)
        hints[symbol] = max(1, min(traced.hints[axis], LONGEST_HINT) // least)
    lowered = SelectedProgram(hints)
    lowered.settles = False
    lowered.unrolled = UNROLLED if how == "unrolled" else 0
    lowered.divides_rows = how == "rows divided"
    lowered.repeats = how == "repeated"
    lowered.in_memory = how in (*THROUGH_MEMORY, MIXED)
    lowered.in_scratch = how in (APART, COPIED, MIXED)
    lowered.multiplies = short_fold != SHORT_FOLD
    lowered.reserve([*(RESERVED - OURS), *(a.name for a in spec.arguments), *spec.axes, *map(str, hints)])
    inputs, values = {}, {}
    for tensor in spec.inputs:
        buffer = Buffer(tensor.name, memory_of(tensor, sizes), dtype_of(tensor, dtype), text=tensor.name)
        lowered.buffers.append(buffer)
        inputs[tensor.name] = buffer
        lowered.given.add(buffer)
        if all(
            value.split(":")[0]
            in ("index", "offsets", "starts", "below", "permutation")  # of distinct ones an eighth is -1
            for value in tensor.values
        ):
            lowered.non_negative.add(buffer)
        if all(value.split(":")[0] in DISTINCT for value in tensor.values):
            lowered.distinct.add(buffer)
        value = lowered.whole(buffer, origin=tensor.name)
        if tensor.strides:
            value = lowered.strided(value, shape_of(tensor, sizes), strides_of(tensor, sizes), sympy.Integer(0))
        if how in (COPIED, COPIED_IN_MEMORY) and tensor.role == "inout":
            value = lowered.formula(value.shape, value.dtype, value.at, f"{tensor.name}_before")
            lowered.copied.add(lowered.realise(value))
        values[traced.inputs[tensor.name]] = value
    for argument in spec.arguments:
        node = traced.inputs.get(argument.name)
        if argument.kind == "scalar" and node is not None:
            values[node] = lowered.formula((), torch.float64, scalar_of(argument.name, argument.ctype), argument.name)
    values |= {node: operators.table_of(lowered, held) for node, held in traced.tables.items()}
    quotients = Quotients(lowered.hints)
    SIZES.set({theirs: sizes[axis] for theirs, axis in traced.symbols.items()})
    QUOTIENTS.set(quotients if lowered.in_memory else None)
    for theirs, count in traced.steps.items():
        steps = size_of(count)
        SIZES.get()[theirs] = lowered.ranges.named(lowered.name("step"), steps)
        lowered.open_steps += ((SIZES.get()[theirs], steps),)
    lower(lowered, traced.graph, values)
    shapes = {tensor.name: tuple(map(name_quotients, shape_of(tensor, sizes))) for tensor in spec.outputs}
    if lowered.libraries:
        raise NoProgram(
            f"the reference calls {lowered.libraries[0].origin}, which has no kernel of the compiler's: write it by operators that have, or add it (compiler/README.md)"
        )
    outputs: dict[str, Buffer] = {}
    lowered.finite = frozenset(inputs[tensor.name] for tensor in spec.inputs if not spec.nans or is_bounded(tensor))
    for tensor in spec.outputs:
        value = values[traced.outputs[tensor.name]]
        if value.scatter is not None:
            if is_given(value.scatter, values.get(traced.inputs.get(tensor.name))):
                outputs[tensor.name] = write_scattered(lowered, tensor, value.scatter, in_pieces)
                continue
            value = indexing.put_into_copy(lowered, value.scatter)
        if not in_pieces:
            value.pieces = ()
        value.pieces = value.pieces or pieces_of(lowered, value)
        if in_pieces and vector > 1 and short_fold == SHORT_FOLD and (planes := planes_of(lowered, value)):
            value = lowered.formula(value.shape, value.dtype, value.at, value.origin)
            value.pieces = planes
        if tensor.strides:
            buffer = Buffer(
                lowered.name(f"{tensor.name}_out"), memory_of(tensor, sizes), dtype_of(tensor, dtype), text=tensor.name
            )
            lowered.buffers.append(buffer)
            whole = lowered.reshape(value, shape_of(tensor, sizes))
            write_map(lowered, whole, buffer, tensor.name, COMPUTED[buffer.dtype], place_of(strides_of(tensor, sizes)))
            outputs[tensor.name] = buffer
            continue
        outputs[tensor.name] = write_output(
            lowered, tensor, value, shapes[tensor.name], dtype_of(tensor, dtype), outputs.values()
        )
    for one in lowered.definitions:
        if any(not size.free_symbols <= lowered.hints.keys() for size in one.ranges):
            raise NoProgram(
                f"{one.origin} is of as many elements as the inputs' values say, which no kernel of the compiler's is: keep all of "
                "them and mask those that do not count"
            )
    now = lowered.hints | sizes_at(symbols, traced.hints)
    for index, symbol in quotients.items():
        now[symbol] = max(1, int(index.subs(now)))
    if lowered.in_scratch:
        split_long(lowered, now)
    for buffer in lowered.buffers if lowered.in_scratch else ():  # as computed, not as an input is stored
        if (
            buffer not in inputs.values()
            and buffer not in lowered.copied
            and buffer not in outputs.values()
            and buffer.dtype in NARROW_FLOATS
        ):
            buffer.dtype = torch.float32
    named = {symbol: index for index, symbol in quotients.items()}
    if how in THROUGH_MEMORY:
        keep_invariants(lowered)
        together = phases_of(lowered, set(outputs.values()), set(inputs) & set(outputs), now)
        return KernelProgram(
            spec, dtype, vector, packs, sizes, symbols, lowered, inputs, outputs, [together], sympy.S.Zero, named
        )  # fmt: skip
    ratios = [symbol for symbol, (_, by) in symbols.items() if isinstance(by, str)]
    streams = streams_of(lowered, set(outputs.values()), ratios)
    loops = steps_of(lowered, set(outputs.values()))
    tiles = products_of(lowered, set(outputs.values()), lowered.in_scratch, short_fold == SHORT_FOLD)
    apart = [*(side for tile in tiles for side in tile.read), *(m.value for loop in loops for m in loop.members)]
    apart += [m.value for tile in tiles for m in tile.stores]
    read = {load.args[0] for load in loads_of(apart)} - {one for tile in tiles for one in tile.sums}
    phases = phases_alone(lowered, set(outputs.values()), now) if how == MIXED else {}
    fusion = Fusion(lowered, set(outputs.values()) | (read - set(inputs.values())), vector, short_fold, phases)
    kernels = sorted([*_kernels(fusion), *streams, *loops, *tiles], key=lambda kernel: kernel.order)
    makers = {out: at for at, kernel in enumerate(kernels) for out in kernel.made if out not in inputs.values()}
    for at, kernel in enumerate(kernels):  # what is fused does not know what a product that it reads needs itself
        if any(makers.get(load.args[0], at) > at for load in loads_of(kernel.roots)):
            raise NoDraft("a kernel would read what a later one makes")
    program = KernelProgram(
        spec, dtype, vector, packs, sizes, symbols, lowered, inputs, outputs, kernels, fusion.lane, named
    )
    check_memory(program, apart=lowered.in_scratch)
    for kernel in kernels if short_fold == SHORT_FOLD else ():
        if type(kernel) is PackedKernel:
            kernel.turned = turn(fusion, kernel, program.stored(kernel))
            kernel.tiled = tile_rows(fusion, kernel, program.stored(kernel))
    return program


def _kernels(fusion: Fusion) -> list[PackedKernel]:
    """Raises NoProgram for what the sketches have no text for."""
    kernels = [step for step in fusion.steps if isinstance(step, Kernel)]
    for kind in (m.definition.kind for kernel in kernels if kernel.layout != PHASES for m in kernel.members):
        if kind != "map" and kind not in FOLDS:
            raise NoProgram(
                f"{kind.replace('_', ' ')} stands beside what no sketch does with it: give both in a reference of their own"
            )
    if any(member.definition.is_product for kernel in kernels for member in kernel.members):
        raise NoProgram("the reference multiplies matrices, which no sketch does yet but for vectors")
    return [kernel for kernel in kernels if isinstance(kernel, PackedKernel)]
