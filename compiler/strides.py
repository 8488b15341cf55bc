"""Along which axis a value lies side by side in memory."""

from __future__ import annotations

import sympy

from compiler.draft.expressions import Expr, loads_of
from compiler.draft.index import Index, Ranges
from compiler.draft.tensors import Definition

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
    """Whether what one reduction reads is read again, moved by one, for its neighbour: a pool, a filter."""
    at = [variables.variable(f"read{axis}", size) for axis, size in enumerate(definition.ranges)]
    for load in loads_of([definition.element(at)]):
        steps = strides_along(load.args[1], at)
        if {steps[axis] for axis in definition.reduced} & {steps[axis] for axis in definition.kept} - {None, 0}:
            return True
    return False


def goes_across(steps: list[Index | None], axis: int, last: int) -> bool:
    """Whether a load's neighbours lie along `axis`, not along the last one."""
    return steps[axis] == 1 and steps[last] not in (None, 0, 1)
