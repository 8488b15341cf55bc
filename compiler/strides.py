"""Along which axis a value lies side by side in memory."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import sympy

from compiler.draft.expressions import Expr, loads_of
from compiler.draft.index import Index, Ranges, estimate, joined, product
from compiler.draft.tensors import Definition

if TYPE_CHECKING:
    from compiler.kernel import PackedKernel
    from compiler.program import KernelProgram

LEAST_EXTENT = 16
"""Elements of an axis below which it is not worth going along it: most of a tile, or of a warp, would be left over."""


def loads_at_once(roots: list[Expr]) -> list[Expr]:
    """Loads that no condition guards, once each."""
    found: dict[int, Expr] = {}
    stack, seen = list(reversed(roots)), set[int]()
    while stack:
        expr = stack.pop()
        if id(expr) in seen:
            continue
        seen.add(id(expr))
        if expr.op == "load":
            found[id(expr)] = expr
        guards = expr.op in ("masked", "only_if", "repeated", "halved")
        stack += [arg for arg in reversed(expr.args[:1] if guards else expr.args) if isinstance(arg, Expr)]
    return list(found.values())


def strides_along(place: Index, at: list[Index]) -> list[Index | None]:
    """How far an element is from the next along each axis; None where that depends on where it is."""
    place, found = sympy.expand(place), []
    for variable in at:
        step = place.coeff(variable) if variable.is_Symbol else sympy.Integer(0)
        rest = sympy.expand(place - step * variable)
        known = variable not in rest.free_symbols and not step.free_symbols & set(at)
        found.append(step if known else None)
    return found


def steps_of_loads(definition: Definition, variables: Ranges) -> list[tuple[Expr, list[Index | None]]]:
    """Of each load that no condition guards, how far it goes along each axis."""
    at = variables.probe(definition.ranges)
    return [(load, strides_along(load.args[1], at)) for load in loads_at_once([definition.element(at)])]


def is_window(definition: Definition, variables: Ranges) -> bool:
    """Whether what one reduction reads is read again for a neighbour: a pool, a filter, in steps and apart."""
    at = [variables.variable(f"read{axis}", size) for axis, size in enumerate(definition.ranges)]
    for load in loads_of([definition.element(at)]):
        steps = strides_along(load.args[1], at)
        pairs = itertools.product(definition.reduced, definition.kept)
        if any(
            _overlap(steps, definition.ranges, *pair) or _overlap(steps, definition.ranges, *pair[::-1])
            for pair in pairs
        ):
            return True
    return False


def _overlap(steps: list[Index | None], sizes: tuple[Index, ...], one: int, other: int) -> bool:
    """Whether a step along `one` is some along `other`, no more than there are."""
    step, by = steps[one], steps[other]
    if step is None or by is None or 0 in (step, by):
        return False
    times = sympy.cancel(step / by)
    return bool(times.is_Integer and times > 0 and (times == 1 or not sizes[other].is_Integer or times < sizes[other]))


def goes_across(steps: list[Index | None], axis: int, last: int) -> bool:
    """Whether a load's neighbours lie along `axis`, not along the last one."""
    return steps[axis] == 1 and steps[last] not in (None, 0, 1)


SMALL_ROW = 32
"""How much less than is written a tensor may be of which rows are read across: windows of three by three read a ninth."""


def row_read_across(program: KernelProgram, kernel: PackedKernel) -> Index | None:
    """Packs of a row of what a map writes where all that it reads much of lies along the rows before: windows of planes as columns."""
    long = [axis for axis, size in enumerate(kernel.ranges) if size != 1]
    if (
        kernel.reduced
        or kernel.width == 1
        or len(long) < 2
        or any(m.definition.ranges != kernel.ranges for m in kernel.members)
    ):
        return None
    ranges, size_of = program.lowered.ranges, lambda index: estimate(index, program.lowered.hints)
    at = [ranges.variable(f"read{axis}", size) for axis, size in enumerate(kernel.ranges)]
    loads = [load for member in kernel.members for load in loads_of([member.definition.element(at)])]
    least = size_of(product(kernel.ranges)) / SMALL_ROW
    large = {load.args[0] for load in loads if size_of(load.args[0].elements) >= least}
    steps = [strides_along(joined(load.args[1]), at) for load in loads if load.args[0] in large and load.op == "load"]
    row = sympy.cancel(kernel.ranges[long[-1]] / kernel.width)
    across = [one[long[-2]] == 1 and one[long[-1]] not in (0, 1) for one in steps]
    return row if steps and all(across) and kernel.row_of_packs == 1 and not row.is_Integer else None
