"""What every row computes anew for each column, by calls into the mathematical library, is computed once into a table.

    for (t ...) { for (h ...) { for (i ...) { angle = position[t] * powf(base, -i / n); c = cosf(angle); ... } } }

takes the same cosines for every head and the same powers for every token. An expression of the inner counter that does not
depend on a loop around it stands in a vector in front of that loop, filled by a loop of its own. Rotary embeddings gain the
number of heads by it, and what is left of their arithmetic has a form for sixteen lanes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.host_dependence import steady
from nodes.rewrites.analysis.host_effects import effects
from nodes.rewrites.analysis.host_loops import canonical, has_pragma, header, loops, put_in_front, varying
from nodes.rewrites.analysis.host_source import (
    called,
    calls_below,
    changed_names,
    enclosing_function,
    identifiers,
    is_float,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free, include
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, one_by_one
from nodes.rewrites.syntax.tree import JUMPS, names_declared, one_variable, upward

_COSTLY = {
    "pow", "exp", "exp2", "log", "log2", "log10", "log1p", "expm1", "sin", "cos", "tan", "tanh", "sinh", "cosh", "atan",
    "atan2", "asin", "acos", "erf", "erfc", "cbrt", "hypot", "fmod",
}  # fmt: skip


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
        counts = inner.step_node is None or source.of(inner.step_node).isdigit()
        whole = counts and not inner.inclusive and source.of(inner.start_node) == "0"
        if whole and inner.body.type == "compound_statement" and not has_pragma(source, inner):
            yield from ((source, outer, inner) for outer in _around(source, inner))


def _around(source: Source, inner: Loop) -> list[Loop]:
    """The loops around one that run it at least once each, outermost first."""
    found: list[Loop] = []
    for here in upward(inner.node.parent):
        loop = canonical(source, here) if here.type == "for_statement" else None
        if here.type != "compound_statement" and (loop is None or has_pragma(source, loop)):
            break
        found = [loop, *found] if loop is not None else found
    return found


def _tabulate(edits: Edits, source: Source, outer: Loop, inner: Loop) -> None:
    if source.has(outer.body, *JUMPS):
        raise Unsupported("a loop that may end early")
    moved = _Independent(source, outer, inner)
    values, unread = moved.found()
    if not values:
        raise Unsupported("nothing to put into a table")
    taken = identifiers(source, enclosing_function(inner.node))
    tables: dict[str, str] = {}
    for value in values:
        text = moved.written_out(value)
        if text not in tables:
            tables[text] = free(_name(source, value), taken)
            taken.add(tables[text])
        edits.replace(value, f"{tables[text]}[{inner.name}]")
    lines = [f"std::vector<float> {name}({source.of(inner.bound_node)});" for name in tables.values()]
    lines.append(f"{header(source, inner)} {{")
    lines += [f"{source.unit(outer.node)}{name}[{inner.name}] = {text};" for text, name in tables.items()]
    put_in_front(edits, outer, [*lines, "}"])
    for declaration in unread:
        edits.remove(declaration)
    include(source, edits, "vector")


def _name(source: Source, value: Node) -> str:
    """`cosine_of` what it is stored in, or what is called, for the table of an expression."""
    if value.parent.type == "init_declarator":
        return f"{source.of(value.parent, 'declarator')}_table"
    call = next(source.walk(value, "call_expression"))
    return f"{called(source, call)}_table"


class _Independent:
    """The largest costly floats of an inner loop that an outer loop does not change."""

    def __init__(self, source: Source, outer: Loop, inner: Loop) -> None:
        self.source, self.outer, self.inner = source, outer, inner
        self.effects = found = effects(source, outer)
        self.variant = (varying(source, outer) - {inner.name}) | {carried.name for carried in found.carried}
        ends = (inner.bound_node, inner.node.child_by_field_name("initializer"))
        if any(identifiers(source, node) & self.variant for node in ends):
            raise Unsupported("a length that changes")
        if source.has(inner.bound_node, "call_expression", "subscript_expression", "field_expression"):
            raise Unsupported("a length of another form")
        self.declared = [source.of(n) for d in source.walk(outer.body, "declaration") for n in names_declared(d)]
        if self.declared.count(inner.name) != 1:
            raise Unsupported("two counters of one name")
        self.fixed: dict[str, tuple[Node, Node]] = {}
        """The inner loop's variables that the outer loop does not change: their declarations and values."""
        for node in inner.body.named_children:
            variable = one_variable(node) if node.type == "declaration" else None
            name = source.of(variable[0]) if variable is not None else ""
            if variable is None or self.declared.count(name) != 1 or name in changed_names(source, inner.body):
                continue
            if self.independent(variable[1]):
                self.fixed[name] = node, variable[1]
                self.variant.discard(name)

    def found(self) -> tuple[list[Node], list[Node]]:
        """Values that get a table, and declarations that nothing reads then."""
        source, values, read = self.source, list[Node](), set[str]()
        own = {node.id for node, _ in self.fixed.values()}
        stack = [node for node in reversed(self.inner.body.named_children) if node.id not in own]
        while stack:
            node = stack.pop()
            if node.type in {"for_statement", "while_statement", "do_statement", "preproc_call", "lambda_expression"}:
                stack.extend(source.walk(node, "identifier"))
            elif (
                node.type == "identifier" and source.of(node) in self.fixed.keys() - read
            ):  # what is read of them is kept, or has a table
                read.add(source.of(node))
                stack.append(self.fixed[source.of(node)][1])
            elif self._pays(node):
                values.append(node)
            else:
                stack.extend(reversed(node.named_children))
        return sorted(values, key=lambda node: node.start_byte), [
            node for name, (node, _) in self.fixed.items() if name not in read
        ]

    def _pays(self, node: Node) -> bool:
        kind = node.type in {"binary_expression", "call_expression", "parenthesized_expression"}
        return kind and is_float(self.source, node) and self.costly(node) and self.independent(node)

    def written_out(self, node: Node) -> str:
        """A value in terms of the counter and of what stands in front of the outer loop."""
        uses = [n for n in self.source.walk(node, "identifier") if self.source.of(n) in self.fixed]
        return self.source.render(node, [(use, self._value_of(use)) for use in uses])

    def _value_of(self, use: Node) -> str:
        declaration, value = self.fixed[self.source.of(use)]
        text, kind = self.written_out(value), self.source.of(declaration, "type")
        if kind != "auto" and not (kind == "float" and is_float(self.source, value)):
            return f"static_cast<{kind}>({text})"
        return text if use.parent.type == "argument_list" else f"({text})"

    def independent(self, node: Node) -> bool:
        """Whether an expression gives the same value in every iteration of the outer loop and changes nothing."""
        return steady(self.source, node, self.variant, self.effects)

    def costly(self, node: Node) -> bool:
        """Whether it calls what takes long, itself or by way of functions of the file; and moves with the inner counter: otherwise
        it is one number, which licm moves."""
        names = (called(self.source, call).removesuffix("f") for call in calls_below(self.source, node))
        moves = re.search(rf"\b{self.inner.name}\b", self.written_out(node)) is not None
        return moves and any(name in _COSTLY or f"{name}f" in _COSTLY for name in names)
