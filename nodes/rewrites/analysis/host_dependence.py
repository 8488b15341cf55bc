"""Whether iterations of a C++ loop may run in any order, and what they then add up to.

`check_independent` decides whether two different iterations can ever touch the same element where one of them writes; `reductions`
says what the variables are that an iteration takes over from the one before.
"""

from __future__ import annotations

from typing import NamedTuple

from tree_sitter import Node

from nodes.rewrites.analysis.host_effects import SIZE, Access, Carried, Effects, Iteration, effects
from nodes.rewrites.analysis.host_source import PURE, functions, host_code, identifiers
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Source, Unsupported, inside
from nodes.rewrites.syntax.tree import enclosing

_ONE = Polynomial.constant(1)
_EXTREMES = {form.format(kind): kind for kind in ("max", "min") for form in ("{}", "f{}", "f{}f", "simd_{}")}
_SUMS = ("++$v", "$v++", "$v += $e", "$v = $v + $e", "$v = $e + $v")
_CALLS = ("$v = $f($v, $e)", "$v = $f($e, $v)")
_CHOICES = {
    f"{left} {sign} {right}": "max" if (sign == ">") == (left == "$v") else "min"
    for sign in (">", "<") for left, right in (("$v", "$e"), ("$e", "$v"))
}  # fmt: skip
"""What `condition ? $v : $e` is."""
_GUARDED = {
    f"if ({test}) {body}": {"max": "min", "min": "max"}[kind]
    for test, kind in _CHOICES.items() for body in ("$v = $e;", "{ $v = $e; }")
}  # fmt: skip
_CHOSEN = {f"$v = {test} ? $v : $e": kind for test, kind in _CHOICES.items()}
_CHOSEN |= {f"$v = {test} ? $e : $v": {"max": "min", "min": "max"}[kind] for test, kind in _CHOICES.items()}


class Reduction(NamedTuple):
    kind: str
    """As OpenMP calls it: `+`, `max`."""
    statement: Node
    """The assignment, with the `if (x > m)` around it."""
    value: Node | None
    """What comes to the variable, None for 1."""


def unordered(source: Source, loop: Loop) -> tuple[Effects, dict[str, str]]:
    """What an iteration does and what the loop reduces (variable -> operator), where iterations may run in any order.
    Raises Unsupported where they may not, or where that is not known."""
    found = effects(source, loop)
    check_independent(found)
    return found, reductions(source, found)


# --- elements ------------------------------------------------------------------------------------------------------


def check_independent(found: Effects) -> None:
    """Raises Unsupported unless no two iterations touch one element that either of them writes.

    With `v` the loop's variable, every access to a root that is written must be `S * v + low + high`: one stride `S`
    for all, `low` inside one window of `S` elements, `high` a multiple of the whole span `S * extent`.
    """
    for root in found.written:
        accesses = [access for access in found.accesses if access.root == root]
        strides, windows = zip(*(_window(found.iteration, access) for access in accesses), strict=True)
        if len(set(strides)) != 1:
            raise Unsupported(f"{root} is indexed with several strides")
        if any(not _not_negative(strides[0] - _ONE - (high - low)) for low, _ in windows for _, high in windows):
            raise Unsupported(f"iterations of {found.iteration.symbol.text} overlap in {root}")


def _window(iteration: Iteration, access: Access) -> tuple[Polynomial, tuple[Polynomial, Polynomial]]:
    """How far an iteration moves an access on, and the smallest and largest place that it has in one. Raises Unsupported."""
    variable, line, name = iteration.symbol, f"line {access.node.start_point[0] + 1}", access.root
    if access.offset is None:
        raise Unsupported(f"{line}: which element of {name} is meant is not known")
    stride, rest = access.offset.coefficient(variable), access.offset.without(variable)
    if rest.depends_on(variable) or stride.depends_on(variable):
        raise Unsupported(f"{line}: the index of {name} is not linear in {variable.text}")
    if any(stride.depends_on(inner.symbol) for inner in access.inner):
        raise Unsupported(f"{line}: the stride of {name} changes")
    if not _not_negative(stride - _ONE):
        raise Unsupported(f"{line}: {name} is indexed without {variable.text}, or backwards")
    if iteration.low is not None and iteration.high is not None and iteration.low.value == 0:
        span = stride * (iteration.high + _ONE)
        rest = Polynomial.of((m, c) for m, c in rest.terms if Polynomial.of([(m, c)]).over(span) is None)
    window = _range(rest, access.inner)
    if window is None:
        raise Unsupported(f"{line}: the range of {name}'s index is not known")
    return stride, window


def _not_negative(value: Polynomial) -> bool:
    """True where the value cannot be negative for sizes >= 1 and loop variables >= 0."""
    for symbol in value.symbols:
        if symbol.where == SIZE:
            value = value.substitute(symbol, Polynomial.symbol(symbol) + _ONE)
    return all(c >= 0 for _, c in value.terms)


def _range(value: Polynomial, inner: tuple[Iteration, ...]) -> tuple[Polynomial, Polynomial] | None:
    """Smallest and largest value over the loops inside, None where that is not known."""
    ends = [each for each in reversed(inner) if value.depends_on(each.symbol)]
    low = high = value
    for symbol, first, last in ends:
        if first is None or last is None or not all(_not_negative(end.coefficient(symbol)) for end in (low, high)):
            return None
        low, high = low.substitute(symbol, first), high.substitute(symbol, last)
    return None if any(end.depends_on(each.symbol) for end in (low, high) for each in inner) else (low, high)


# --- variables -----------------------------------------------------------------------------------------------------


def reductions(source: Source, found: Effects) -> dict[str, str]:
    """OpenMP reduction operator of each variable that the loop carries. Raises Unsupported where one is not a reduction."""
    kinds: dict[str, str] = {}
    statements: dict[str, list[Node]] = {}
    for carried in found.carried:
        mine = reduction(source, carried)
        if mine is not None and kinds.setdefault(carried.name, mine.kind) == mine.kind:
            statements.setdefault(carried.name, []).append(mine.statement)
    uses = [
        use for use in source.walk(found.loop.body, "identifier") if source.of(use) in {c.name for c in found.carried}
    ]
    if not all(any(inside(use, statement) for statement in statements.get(source.of(use), ())) for use in uses):
        raise Unsupported("a variable that an iteration carries to the next")
    return kinds


def reduction_clauses(carried: dict[str, str]) -> str:
    """As OpenMP has them, each behind a space."""
    return "".join(f" reduction({kind}:{name})" for name, kind in carried.items())


def reduction(source: Source, carried: Carried) -> Reduction | None:
    """What an assignment reduces its variable by; None where it does something else with it."""
    statement = enclosing(carried.node, "if_statement")
    found = match(source, statement, *_GUARDED)
    if found is None:
        found, statement = match(source, carried.node, *_SUMS, *_CHOSEN, *_CALLS), carried.node
    others = [part for hole, part in found.items() if hole != "v"] if found is not None else []
    if found is None or source.of(found["v"]) != carried.name or carried.name in identifiers(source, *others):
        return None
    called = source.of(found.get("f")).partition("<")[0].removeprefix("std::")
    kind = "+" if found.pattern in _SUMS else (_GUARDED | _CHOSEN).get(found.pattern) or _EXTREMES.get(called, "")
    return Reduction(kind, statement, found.get("e")) if kind else None


# --- values --------------------------------------------------------------------------------------------------------


def steady(source: Source, node: Node, variant: set[str], found: Effects) -> bool:
    """Whether an expression changes nothing, names nothing of `variant` and reads no array that the loop writes."""
    if identifiers(source, node) & variant or source.has(
        node, "assignment_expression", "update_expression", "lambda_expression"
    ):
        return False
    for name in map(source.called, source.walk(node, "call_expression")):
        own = functions(source).get(name, ())
        pure = bool(own) or (name in PURE | {"static_cast", "float"} and name not in host_code(source).overloads)
        if not pure or any(each.behind for function in own for each in function.parameters):
            return False
    return not any(access.root in found.written and inside(access.node, node) for access in found.accesses)
