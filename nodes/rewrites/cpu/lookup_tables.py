"""What every row computes anew for each column, by calls into the mathematical library, is computed once into a table.

    for (t ...) { for (h ...) { for (i ...) { angle = position[t] * powf(base, -i / n); c = cosf(angle); ... } } }

takes the same cosines for every head and the same powers for every token. An expression of the inner counter that does not
depend on a loop around it stands in a vector in front of that loop, filled by a loop of its own. Rotary embeddings gain the
number of heads by it, and what is left of their arithmetic has a form for sixteen lanes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.host_dependence import steady
from nodes.rewrites.analysis.host_effects import effects
from nodes.rewrites.analysis.host_loops import canonical, has_pragma, header, loops
from nodes.rewrites.analysis.host_source import (
    called,
    changed_names,
    declared_names,
    enclosing_function,
    functions,
    identifiers,
    indentation,
    is_float,
    over_lanes,
    pragma_node,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free, include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside, one_by_one

_COSTLY = {
    "pow", "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "atan",
    "atan2", "asin", "acos", "erf", "erfc", "cbrt", "hypot", "fmod",
}  # fmt: skip


@dataclass(frozen=True)
class _Moved:
    """What of an inner loop's body does not depend on the loop around it."""

    declarations: tuple[Node, ...]
    """Of variables that some table is made of, in order."""
    values: tuple[Node, ...]
    """The expressions that get a table."""


@rule(
    "cpu",
    expected="calls into the mathematical library fall from one an element to one a column",
    speedup=3.0,
    helps={"latency", "compute"},
    after=("unflatten_loop",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: object) -> str | None:
    return one_by_one(source, _tabulate, _nests, 16)


def _nests(source: Source) -> Iterator[tuple[Source, Loop, Loop]]:
    for inner in loops(source):
        if inner.step_node is not None and not source.of(inner.step_node).isdigit():
            continue
        if inner.inclusive or source.of(inner.start_node) != "0" or over_lanes(source, inner.node):
            continue
        if inner.body.type != "compound_statement" or has_pragma(source, inner):
            continue
        yield from ((source, outer, inner) for outer in _around(source, inner))


def _around(source: Source, inner: Loop) -> list[Loop]:
    """The loops around one that run it at least once each, outermost first."""
    found: list[Loop] = []
    here = inner.node.parent
    while here is not None and here.type in {"compound_statement", "for_statement"}:
        if here.type == "for_statement":
            loop = canonical(source, here)
            if loop is None or pragma_node(source, here) is not None:
                break
            found.insert(0, loop)
        here = here.parent
    return found


def _tabulate(edits: Edits, source: Source, outer: Loop, inner: Loop) -> None:
    if any(source.walk(outer.body, "break_statement", "continue_statement", "goto_statement", "return_statement")):
        raise Unsupported("a loop that may end early")
    moved = _Independent(source, outer, inner).found()
    if not moved.values:
        raise Unsupported("nothing to put into a table")
    function = enclosing_function(inner.node)
    taken = identifiers(source, function)
    indent, unit = indentation(source, outer.node), source.unit(outer.node)
    names: dict[str, str] = {}
    for value in moved.values:
        text = source.of(value)
        if text not in names:
            names[text] = free(_name(source, value), taken)
            taken.add(names[text])
        edits.replace(value, f"{names[text]}[{inner.name}]")
    bound = source.of(inner.bound_node)
    lines = [f"std::vector<float> {name}({bound});" for name in names.values()]
    lines.append(f"{header(source, inner)} {{")
    lines += [f"{unit}{source.of(node)}" for node in moved.declarations]
    lines += [f"{unit}{name}[{inner.name}] = {text};" for text, name in names.items()]
    lines.append("}")
    edits.insert(outer.node.start_byte, "".join(f"{line}\n{indent}" for line in lines))
    gone = list(moved.values)
    for node in reversed(moved.declarations):  # what only one that stays is made of stays as well
        name = next(iter(declared_names(source, node)))
        uses = [n for n in source.walk(inner.body, "identifier") if source.of(n) == name and not inside(n, node)]
        if all(any(inside(use, each) for each in gone) for use in uses):
            gone.append(node)
            edits.remove(node)
    include(source, edits, "vector")


def _name(source: Source, value: Node) -> str:
    """`cosine_of` what it is stored in, or what is called, for the table of an expression."""
    if value.parent.type == "init_declarator":
        return f"{source.of(value.parent.child_by_field_name('declarator'))}_table"
    call = next(source.walk(value, "call_expression"))
    return f"{called(source, call)}_table"


class _Independent:
    """The largest costly floats of an inner loop that an outer loop does not change."""

    def __init__(self, source: Source, outer: Loop, inner: Loop) -> None:
        self.source, self.outer, self.inner = source, outer, inner
        self.own = functions(source)
        self.effects = found = effects(source, outer)
        changed = changed_names(source, outer.body) | declared_names(source, outer.body)
        self.variant = (changed | {outer.name}) - {inner.name}
        self.variant |= {carried.name for carried in found.carried}
        ends = (inner.bound_node, inner.node.child_by_field_name("initializer"))
        if any(identifiers(source, node) & self.variant for node in ends):
            raise Unsupported("a length that changes")
        if any(source.walk(inner.bound_node, "call_expression", "subscript_expression", "field_expression")):
            raise Unsupported("a length of another form")
        declared = [n for n in source.walk(outer.body, "declaration") if inner.name in declared_names(source, n)]
        if len(declared) != 1:
            raise Unsupported("two counters of one name")

    def found(self) -> _Moved:
        source = self.source
        declarations: list[Node] = []
        assigned = changed_names(source, self.inner.body)
        for node in self.inner.body.named_children:
            if node.type != "declaration" or len(node.children_by_field_name("declarator")) != 1:
                continue
            declarator = node.child_by_field_name("declarator")
            value = declarator.child_by_field_name("value") if declarator.type == "init_declarator" else None
            name = declarator.child_by_field_name("declarator") if value is not None else None
            if name is None or name.type != "identifier" or source.of(name) in assigned:
                continue
            if not self.independent(value) or any(source.walk(value, "lambda_expression")):
                continue
            others = [n for n in source.walk(self.outer.body, "declaration") if n != node]
            if not any(source.of(name) in declared_names(source, other) for other in others):
                declarations.append(node)
                self.variant.discard(source.of(name))
        values: list[Node] = []
        stack = list(reversed(self.inner.body.named_children))
        movable = {node.id for node in declarations}
        while stack:
            node = stack.pop()
            if node.type in {"for_statement", "while_statement", "do_statement", "preproc_call", "lambda_expression"}:
                continue
            kind = node.type in {"binary_expression", "call_expression", "parenthesized_expression"}
            if kind and is_float(source, node) and self.costly(node) and self.independent(node):
                values.append(node)
                continue
            stack.extend(reversed(node.named_children))
        # A variable that only another table is made of needs no table.
        needed, tables = set[str](), []
        for value in reversed(values):
            holder = value.parent.parent if value.parent.type == "init_declarator" else None
            if holder is not None and holder.id in movable:
                name = next(iter(declared_names(source, holder)))
                uses = [n for n in source.walk(self.inner.body, "identifier") if source.of(n) == name]
                outside = [n for n in uses if not inside(n, holder) and not any(inside(n, t) for t in tables)]
                outside = [n for n in outside if not self._in_moved(n, declarations, tables)]
                if not outside:
                    continue
            tables.insert(0, value)
        for value in tables:
            needed |= identifiers(source, value)
        kept: list[Node] = []
        for node in reversed(declarations):
            inner = node.child_by_field_name("declarator").child_by_field_name("value")
            if next(iter(declared_names(source, node))) in needed and inner not in tables:
                kept.insert(0, node)
                needed |= identifiers(source, inner)
        return _Moved(tuple(kept), tuple(tables))

    def _in_moved(self, use: Node, declarations: list[Node], tables: list[Node]) -> bool:
        """Whether a use stands in a declaration that moves away with the tables made of it."""
        holder = next((d for d in declarations if inside(use, d)), None)
        if holder is None:
            return False
        name = next(iter(declared_names(self.source, holder)))
        uses = [n for n in self.source.walk(self.inner.body, "identifier") if self.source.of(n) == name]
        return all(
            inside(n, holder) or any(inside(n, t) for t in tables) or self._in_moved(n, declarations, tables)
            for n in uses
        )

    def independent(self, node: Node) -> bool:
        """Whether an expression gives the same value in every iteration of the outer loop and changes nothing."""
        return steady(self.source, node, self.variant, self.effects)

    def costly(self, node: Node, depth: int = 0) -> bool:
        """Whether it calls what takes long, itself or by way of functions of the file; and moves with the inner counter."""
        source = self.source
        if depth == 0 and not self._moves(node):
            return False
        for call in source.walk(node, "call_expression"):
            name = called(source, call)
            if name in _COSTLY or name.removesuffix("f") in _COSTLY:
                return True
            if depth < 4 and any(self.costly(f.body, depth + 1) for f in self.own.get(name, ())):
                return True
        return False

    def _moves(self, node: Node) -> bool:
        """Whether a value depends on the inner counter: otherwise it is one number, which licm moves."""
        names, seen = identifiers(self.source, node), set[str]()
        while names - seen:
            seen |= names
            for declaration in self.source.walk(self.inner.body, "declaration"):
                if declared_names(self.source, declaration) & names:
                    names = names | identifiers(self.source, declaration)
        return self.inner.name in names
