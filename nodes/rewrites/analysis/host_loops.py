"""Loops of a C++ candidate that count, and the words for what an iteration of one touches.

The order of the CPU rewrites: other people's forms come first (what is called is in the text, variables live in the loop that
uses them, what walked is indexed), then a flat loop becomes rows, passes are joined, what does not change leaves its loop or
goes into a table, calls into libm get their vector forms, rows are shared out while the loops are still plain, transposed ones are
cut into tiles, what is left is marked for the compiler's vectoriser, and vectors are written out by hand with their stores.
Any other order gives right code, if less of it.

Taken for granted, as the contract between spec and candidate says so: two pointer parameters of an entry point never
overlap, and sizes are at least 1.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    INTEGERS,
    aliases,
    changed_names,
    fields,
    identifiers,
    operator,
    pragma_node,
)
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Source
from nodes.rewrites.syntax.tree import one_variable

SIZE = -2
"""Where parameters of the analysed function are said to be defined: those that are integers are sizes."""


@dataclass(frozen=True)
class Loop:
    """`for (T i = start; i < bound; ++i) body`."""

    node: Node
    variable: str
    kind: str
    """The variable's type, as it is written."""
    start: Node
    bound: Node
    body: Node
    step: Node | None = None
    """What is added per iteration, None for 1."""
    inclusive: bool = False
    """`<=` rather than `<`."""


@dataclass(frozen=True)
class Iteration:
    """A loop variable as the interpreter sees it, with its first and last value."""

    symbol: Symbol
    low: Polynomial | None
    high: Polynomial | None
    step: int = 1
    """How far apart two values of it are at least."""


@dataclass(frozen=True)
class Pointer:
    """`offset` elements from the start of `root`; None where the offset is not known."""

    root: Symbol
    offset: Polynomial | None
    unit: str = ""
    """The type that the start was cast to, whose size an offset counts; "" for the declared one."""


Value = Polynomial | Pointer | None
PRIVATE = Symbol("(private)")
"""Where what an iteration has of its own lives."""


@dataclass(frozen=True)
class Access:
    root: Symbol
    offset: Polynomial | None
    writes: bool
    inner: tuple[Iteration, ...]
    """The loops around it inside the analysed one, outermost first."""
    node: Node
    call: Node | None = None
    """The outermost call inside the loop through which it happens."""
    certain: bool = True
    """Whether every iteration of the loops around it gets there."""
    unit: str = ""
    """As in Pointer: offsets of two units cannot be compared."""


@dataclass(frozen=True)
class Carried:
    """An assignment, inside the loop, to a variable that lives outside of it."""

    name: str
    node: Node


@dataclass
class Effects:
    loop: Loop
    iteration: Iteration
    accesses: list[Access] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    calls: set[str] = field(default_factory=set)
    inner_loops: list[Loop] = field(default_factory=list)
    """Loops of the same function inside this one."""
    called_loops: list[Node | None] = field(default_factory=list)
    """Loops in functions that it calls: the argument that is the loop's bound, None where it is no argument."""

    @property
    def written(self) -> set[Symbol]:
        return {access.root for access in self.accesses if access.writes}


def canonical(source: Source, node: Node) -> Loop | None:
    """The loop, if it counts one integer of its own upwards by a fixed step and its body does not assign it."""
    initializer, condition, update, body = fields(node, "initializer", "condition", "update", "body")
    declared, kind = one_variable(initializer), source.of(initializer, "type")
    if node.has_error or declared is None or None in (condition, update, body) or not is_integer(source, kind):
        return None
    if condition.type != "binary_expression":
        return None
    (name, start), (left, bound) = declared, fields(condition, "left", "right")
    variable = source.of(name)
    compare, (counts, step) = operator(source, condition), _step(source, update, variable)
    if not counts or source.of(left) != variable or compare not in ({"<", "<="} if step else {"<", "<=", "!="}):
        return None
    fixed = {variable} | identifiers(source, bound) | identifiers(source, step)
    if changed_names(source, body) & fixed:
        return None
    return Loop(node, variable, kind, start, bound, body, step, compare == "<=")


def _step(source: Source, update: Node, variable: str) -> tuple[bool, Node | None]:
    """Whether the variable is what moves on, and by what, None for 1."""
    if update.type == "update_expression":
        return "++" in source.of(update) and source.of(update, "argument") == variable, None
    if update.type != "assignment_expression" or operator(source, update) != "+=":
        return False, None
    left, step = fields(update, "left", "right")
    return source.of(left) == variable, None if source.of(step) == "1" else step


def is_integer(source: Source, kind: str) -> bool:
    return set(aliases(source).get(kind, kind).replace("std::", "").split()) <= INTEGERS


def loops(source: Source, node: Node | None = None) -> list[Loop]:
    """Every canonical loop under `node`, in source order."""
    found = [canonical(source, here) for here in source.walk(node, "for_statement")]
    return [loop for loop in found if loop is not None]


def loop_at(source: Source, start: int) -> Loop | None:
    """The canonical loop that starts at a byte."""
    node = source.root.descendant_for_byte_range(start, start + 3)
    while node is not None and node.type != "for_statement":
        node = node.parent
    return canonical(source, node) if node is not None else None


def header(source: Source, loop: Loop) -> str:
    """`for (...)`."""
    return source.data[loop.node.start_byte : loop.body.start_byte].decode().strip()


def counts_from_zero(source: Source, loop: Loop) -> bool:
    """Whether it counts 0, 1, 2 and stops before its bound."""
    return loop.step is None and not loop.inclusive and source.of(loop.start) == "0"


def has_pragma(source: Source, loop: Loop) -> bool:
    return pragma_node(source, loop.node) is not None


# --- values -----------------------------------------------------------------------------------------------------------


def moved(left: Value, right: Value, sign: str) -> Value:
    """A pointer and a distance, or the distance of two pointers."""
    if sign == "-" and isinstance(left, Pointer) and isinstance(right, Pointer):
        known = left.root == right.root != PRIVATE and left.unit == right.unit
        known = known and left.offset is not None and right.offset is not None
        return left.offset - right.offset if known else None
    pointer, distance = (left, right) if isinstance(left, Pointer) else (right, left)
    if sign == "-" and pointer is left:
        distance = -distance if isinstance(distance, Polynomial) else None
    elif sign != "+":
        return None
    known = isinstance(distance, Polynomial) and pointer.offset is not None
    return replace(pointer, offset=pointer.offset + distance if known else None)


def opaque(parts: tuple[Polynomial, Polynomial], sign: str) -> Polynomial:
    """A value of which only is known what it is made of: a quotient, a rest, the larger of two."""
    text = f"{_text(parts[0])}{sign}{_text(parts[1])}"
    return Polynomial.symbol(Symbol(text, -1, frozenset(parts[0].variables() | parts[1].variables()), parts, sign))


def _text(value: Polynomial) -> str:
    terms = sorted((" ".join(f"{s.text}#{s.where}" for s in monomial), c) for monomial, c in value.terms)
    return "(" + "+".join(f"{c}*{text}" for text, c in terms) + ")"


def quotient(left: Polynomial, right: Polynomial) -> Polynomial | None:
    """left / right where every term of it divides without a rest, by a number or a product; None otherwise."""
    if len(right.terms) != 1:
        return None
    ((monomial, factor),) = right.terms
    terms = []
    for product, coefficient in left.terms:
        if not is_multiple(product, coefficient, right):
            return None
        rest = list(product)
        for symbol in monomial:
            rest.remove(symbol)
        terms.append((tuple(rest), coefficient // factor))
    return Polynomial.of(terms)


def is_multiple(monomial: tuple[Symbol, ...], coefficient: int, of: Polynomial) -> bool:
    """Whether a term is a multiple of a single-term polynomial."""
    if len(of.terms) != 1:
        return False
    ((base, factor),) = of.terms
    left = list(monomial)
    for symbol in base:
        if symbol not in left:
            return False
        left.remove(symbol)
    return coefficient % factor == 0


def last_step(low: Polynomial | None, end: Polynomial, step: Value) -> int:
    """How far before its end a loop stops at the latest: a whole step, where whole steps lead from 0 to the end."""
    size = step.value if isinstance(step, Polynomial) else None
    whole = low is not None and low.value == 0 and size is not None and size > 0
    return size if whole and all(c % size == 0 for _, c in end.terms) else 1
