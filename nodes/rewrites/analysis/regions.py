"""Where a kernel hands out elements to threads: strided loops and guarded thread indices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import GRID_CALLS, Code, Definition, inside
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.numbers import EXTREMES
from nodes.rewrites.syntax.algebra import Monomial, Polynomial, Symbol
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Source, Unsupported, operands
from nodes.rewrites.syntax.tree import (
    LOOPS,
    children_of,
    field_of,
    names_declared,
    one_variable,
    same,
    statements,
    upward,
)

THREAD, BLOCK_DIM = Symbol("threadIdx.x"), Symbol("blockDim.x")
BLOCK, GRID_DIM = Symbol("blockIdx.x"), Symbol("gridDim.x")


@dataclass(frozen=True)
class Region:
    """Statements that run once for every `name` below `bound`, shared out over threads.

    block: the threads of a block's x stride over it. team: those of a part of a warp do. grid: all threads of the grid's x do.
    guard: one element a thread.
    """

    kind: Literal["block", "team", "grid", "guard"]
    name: str
    symbol: Symbol
    type: str
    bound_node: Node
    bound: Polynomial
    body: tuple[Node, ...]
    loop: Loop | None = None
    definition: Node | None = None
    """guard: the declaration of the index."""
    condition: Node | None = None
    """guard: the comparison with the bound."""
    guard: Node | None = None
    """guard: the if statement."""
    axis: str = "x"
    """guard: along which of the grid's dimensions the elements run."""

    def holds(self, node: Node) -> bool:
        return any(inside(node, statement) for statement in self.body)

    def tells_apart(self, place: Polynomial) -> bool:
        """Whether threads that share the elements out between them mean different places by this."""

        def differs(symbol: Symbol) -> bool:
            whole = self.kind == "team" and self.loop is not None and symbol.operator == "/"
            if whole and symbol.operands == (Polynomial.product(THREAD), self.loop.step):
                return False  # which team it is
            return symbol == THREAD or any(differs(part) for part in symbol.parts)

        return any(differs(symbol) for symbol in place.symbols)


def thread_loops(kernel: Kernel) -> list[Loop]:
    """Loops whose start differs by thread: `i = <something of threadIdx.x>; i += <something of blockDim.x>`."""
    return [loop for loop in kernel.loops if loop.start.depends_on(THREAD)]


def row_loop(kernel: Kernel) -> Loop | None:
    """The outer loop `for (row = blockIdx.x; row < rows; row += gridDim.x)`, where there is one."""
    outer = (loop for loop in kernel.loops if same(loop.node.parent, kernel.body))
    return next((loop for loop in outer if loop.start.only == BLOCK and loop.step.only == GRID_DIM), None)


def regions(kernel: Kernel) -> list[Region]:
    """Every place of the kernel that hands out single elements, in source order."""
    found: list[Region] = []
    for loop in thread_loops(kernel):
        kind = _shared_out(loop)
        if kind is not None and not any(inside(loop.node, outer.loop.node) for outer in found):
            body = tuple(statements(loop.body))
            found.append(Region(kind, loop.name, loop.symbol, loop.type, loop.bound_node, loop.bound, body, loop))
    guarded = _guarded(kernel) if not found else None
    return found if guarded is None else [guarded]


def _shared_out(loop: Loop) -> Literal["block", "team", "grid"] | None:
    """How threads share out a loop's elements, as Region has it."""
    place = loop.start.only
    if place == THREAD and loop.step.only == BLOCK_DIM:
        return "block"
    if place is not None and place.operator == "%" and place.operands == (Polynomial.product(THREAD), loop.step):
        return "team"
    return "grid" if _is_global_index(loop.start) and loop.step == Polynomial.product(BLOCK_DIM, GRID_DIM) else None


def _is_global_index(start: Polynomial, axis: str = "x") -> bool:
    return start == Polynomial.product(Symbol(f"blockIdx.{axis}"), BLOCK_DIM) + Polynomial.product(THREAD)


def _guarded(kernel: Kernel) -> Region | None:
    """`const int i = blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return; ...` or `if (i < n) { ... }`."""
    source, code = kernel.source, kernel.code
    body = statements(kernel.body)
    for at, statement in enumerate(body):
        variable = one_variable(statement) if statement.type == "declaration" else None
        if variable is None:
            continue
        name_node, value = variable
        index = code.polynomial(value)
        axis = next((a for a in "xyz" if _is_global_index(index, a)), None)
        if axis is None:
            continue
        name = source.of(name_node)
        symbol = Symbol(name, name_node.start_byte, node=name_node)
        declares = {"declaration", "alias_declaration", "type_definition"}
        later = at + 1
        while later < len(body) and (body[later].type in declares or waits(source, body[later])):
            later += 1
        guard = body[later] if later < len(body) else statement
        consequence, condition = field_of(guard, "consequence"), field_of(guard, "condition", "value")
        if guard.type != "if_statement" or condition is None or field_of(guard, "alternative") is not None:
            return None
        leaves = only_returns(source, consequence)
        comparison = _comparison(code, condition, name, ">=" if leaves else "<", "||" if leaves else "&&")
        between = _not_for_guard(kernel, body[at + 1 : later], condition, name)
        if comparison is None or between is None or (not leaves and later != len(body) - 1):
            return None
        bound = field_of(comparison, "right")
        rest = tuple(s for s in (body[later + 1 :] if leaves else statements(consequence)) if not waits(source, s))
        return Region(
            "guard", name, symbol, source.of(statement, "type"), bound, code.polynomial(bound),
            between + rest, definition=statement, condition=comparison, guard=guard, axis=axis,
        )  # fmt: skip
    return None


def _not_for_guard(kernel: Kernel, between: list[Node], condition: Node, index: str) -> tuple[Node, ...] | None:
    """Statements between index and guard, less those that the guard needs; None where these need the index themselves."""
    source = kernel.source
    needed = {source.of(n) for n in source.walk(condition, "identifier")} - {index}
    rest: list[Node] = []
    for statement in reversed(between):
        if statement.type in {"alias_declaration", "type_definition"}:
            continue  # stays where it is
        declared = {source.of(name) for name in names_declared(statement)}
        if not declared & needed:
            rest.insert(0, statement)
            continue
        used = {source.of(n) for n in source.walk(statement, "identifier")} - declared
        if index in used:
            return None
        needed |= used
    return tuple(rest)


def _comparison(code: Code, condition: Node, name: str, operator: str, joint: str) -> Node | None:
    """The comparison of a variable among those that a condition joins."""
    parts = operands(code.source, condition, joint)
    asked = ((part, match(code.source, part, f"$a {operator} $b")) for part in parts)
    return next((part for part, found in asked if found is not None and code.source.of(found["a"]) == name), None)


@dataclass(frozen=True)
class Guard:
    """What a condition must come to for a node to be reached."""

    condition: Node
    holds: bool

    @property
    def key(self) -> tuple[int, bool]:
        return self.condition.id, self.holds


def guards_of(node: Node, region: Region, kernel: Kernel) -> tuple[Guard, ...] | None:
    """The conditions that decide whether the node is reached when its region's element is visited, outer ones first; None
    where it may be reached several times, or in a way that conditions do not say."""
    found: list[Guard] = []
    here = node
    while not any(same(here, statement) for statement in region.body):
        parent = here.parent
        if parent is None or parent.type in {*LOOPS, "switch_statement", "lambda_expression"}:
            return None
        if parent.type in {"if_statement", "conditional_expression"}:
            condition = field_of(parent, "condition")
            if condition is not None and not same(here, condition):
                if condition.type == "condition_clause":
                    condition = field_of(condition, "value")
                if condition is None or condition.type == "declaration":
                    return None
                found.append(Guard(condition, not same(here, field_of(parent, "alternative"))))
        joint = kernel.source.of(parent, "operator") if parent.type == "binary_expression" else ""
        if joint in {"&&", "||"} and not same(here, field_of(parent, "left")):
            return None
        here = parent
    return None if here.type in {*LOOPS, "switch_statement"} else tuple(reversed(found))


class Stride:
    """How an index moves when the region's element moves on by one, and what must hold for that."""

    def __init__(self, symbol: Symbol) -> None:
        self.symbol = symbol
        self.multiples: list[Polynomial] = []
        """Each must be a multiple of the pack's width."""

    def of(self, polynomial: Polynomial) -> int:
        """Raises Unsupported where it is no constant."""
        return sum(step for _, _, step in self._steps(polynomial))

    def _steps(self, polynomial: Polynomial) -> list[tuple[Monomial, int, int]]:
        """Each term with how it moves."""
        found = []
        for monomial, coefficient in polynomial.terms:
            moving = [s for s in monomial if s.depends_on(self.symbol)]
            if len(moving) > 1:
                raise Unsupported("an index that is not linear in the loop variable")
            step = self._of_symbol(moving[0]) if moving else 0
            if step and len(monomial) > 1:
                raise Unsupported("a stride that is only known at run time")
            found.append((monomial, coefficient, coefficient * step))
        return found

    def _of_symbol(self, symbol: Symbol) -> int:
        if symbol == self.symbol:
            return 1
        if symbol.address is not None and self.of(symbol.address) == 0:
            return 0  # a row that is looked up, the same for the whole pack
        if symbol.operator not in {"/", "%"}:
            raise Unsupported(f"an index through {symbol.text}")
        dividend, divisor = symbol.operands
        if divisor.depends_on(self.symbol):
            raise Unsupported("a division by the loop variable")
        terms = self._steps(dividend)
        step = sum(moved for _, _, moved in terms)
        if step == 0:
            return 0
        if step != 1:
            raise Unsupported("a remainder of a multiple")
        # What else is in the dividend must not carry it beyond a multiple of the divisor within a pack.
        rest = Polynomial.of((monomial, coefficient) for monomial, coefficient, moved in terms if not moved)
        self.multiples += [divisor, rest] if rest.terms else [divisor]
        return 1 if symbol.operator == "%" else 0


def accesses_in(kernel: Kernel, region: Region) -> list[Access]:
    return [access for access in kernel.global_accesses() if region.holds(access.node)]


_FOLDS = {
    **{f"$v {sign}= $e": kind for kind, signs in {"sum": "+-", "product": "*", "bits": "|&^"}.items() for sign in signs},
    **{f"$v = {sides}": kind for kind, sign in (("sum", "+"), ("product", "*"), ("bits", "|"), ("bits", "&"))
       for sides in (f"$v {sign} $e", f"$e {sign} $v")},
}  # fmt: skip
_CHANGES = {"assignment_expression", "update_expression"}


def carries_state(kernel: Kernel, body: list[Node]) -> bool:
    """Whether what a thread does with an element depends on the elements that it had before.

    Sums, products and extremes over a thread's elements do not count: in the end they are the same whoever had which
    element. Anything else would change with the number of threads.
    """
    source, code = kernel.source, kernel.code

    def held(node: Node) -> bool:
        return any(inside(node, statement) for statement in body)

    outer = {found.where: found.name for found in _changed(kernel, body) if not held(found.declaration)}
    for access in kernel.accesses:
        if access.writes and not access.root and held(access.node):
            own = code.variable(access.base.node) or code.own_variable(access.base.node)
            if own is not None and not held(own.declaration) and not source.says(own.declaration, "__shared__"):
                return True  # an array of the thread's own, or a variable that is written through a pointer, outlives the element
    kinds: dict[tuple[int, str], str] = {}
    for use in (n for statement in body for n in source.walk(statement, "identifier")):
        found = code.definition(use) if source.of(use) in outer.values() else None
        if found is not None and found.where in outer:
            value = use.parent if use.parent.type == "field_expression" else use  # fields are sums of their own
            fold = fold_of(kernel, value)
            if not fold or kinds.setdefault((found.where, source.of(value)), fold) != fold:
                return True  # also `h ^= e; h *= 31;`, where each by itself would be a fold
    return False


def _changed(kernel: Kernel, body: Iterable[Node]) -> Iterator[Definition]:
    """Variables that statements assign to, or that a function of the file may, by reference."""
    code, source = kernel.code, kernel.source
    for statement in body:
        targets = list(code.assigned(statement))
        for call in source.walk(statement, "call_expression"):
            if source.of(call, "function") not in code.macros:
                targets += [given for given in children_of(call, "arguments") if code.lends(call, given)[0]]
        yield from filter(None, map(code.variable, targets))


def fold_of(kernel: Kernel, identifier: Node) -> str:
    """sum, product, bits, max or min: what the name, or field, takes part in as `v += e`, `v *= e`, `v |= e`, `v = v + e`,
    or `v = fmaxf(v, e)`, and nowhere else in it; "" for anything else."""
    source, name = kernel.source, kernel.source.of(identifier)
    here = next((n for n in upward(identifier) if n.type in _CHANGES or n.type.endswith("statement")), None)
    if here is None or here.parent is None or here.parent.type not in {"expression_statement", "comma_expression"}:
        return ""
    found = match(source, here, *_FOLDS) or match(source, here, "$v = $f($v, $e)", "$v = $f($e, $v)")
    if found is None or source.of(found["v"]) != name:
        return ""
    if any(source.of(n) == name for n in source.walk(found["e"], identifier.type)):
        return ""
    return EXTREMES.get(source.of(found["f"]), "") if "f" in found else _FOLDS[found.pattern]


def only_returns(source: Source, consequence: Node) -> bool:
    return [source.of(s) for s in statements(consequence) if not waits(source, s)] == ["return;"]


def waits(source: Source, statement: Node) -> bool:
    """Waits for the grid before this one, or lets the next one begin to."""
    return source.of(statement).startswith(GRID_CALLS)


def guard_text(kernel: Kernel, condition: str) -> str:
    """`if (condition) return;` as a kernel's first statement; in one that waits for the grid before it, `waiting_return`."""
    source, first = kernel.source, statements(kernel.body)[0]
    if any(waits(source, statement) for statement in statements(kernel.body)):
        return waiting_return(f"({condition})", source.indent(first), source.unit(kernel.body))
    return f"if ({condition}) return;"


def waiting_return(condition: str, indent: str, unit: str) -> str:
    """`if (condition) return;` of a kernel that waits for the grid before it."""
    wait = "cudaGridDependencySynchronize();  // a grid must not be over before the one in front of it"
    return f"\n{indent}".join([f"if {condition} {{", f"{unit}{wait}", f"{unit}return;", "}"])
