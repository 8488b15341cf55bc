"""A flat loop that takes row and column from its counter by `/` and `%` becomes two loops.

A division per element costs some 10 ns where the arithmetic costs 0.3, and an index that goes round keeps the loop
scalar. Only where the counter runs over a product that the divisor divides, so that every row is whole.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    changed_names,
    counts_from_zero,
    declared_names,
    enclosing_function,
    fresh,
    host_code,
    loops,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, lifted
from nodes.rewrites.syntax.tree import JUMPS, field_of, names_declared, pragma_of


@rule(
    "cpu",
    expected="no division per element, and an inner loop over consecutive elements that can be vectorised",
    speedup=2.0,
    helps={"memory", "latency", "compute"},
)
def rewrite(source: Source, facts: object) -> str | None:
    edits = Edits(source)
    for loop in loops(source):
        with edits.attempt():
            _nest(source, loop, edits)
    return edits.apply() if edits.changes else None


def _nest(source: Source, loop: Loop, edits: Edits) -> None:
    body = loop.body
    plain = counts_from_zero(source, loop) and body.type == "compound_statement" and not pragma_of(loop.node)
    divided = [n for n in source.walk(body, "binary_expression") if match(source, n, *_forms(loop, "$n"))]
    widths = {source.of(node, "right") for node in divided}
    if not plain or len(widths) != 1 or source.has(body, "preproc_call", *JUMPS):
        raise Unsupported("another loop, or no / or % by one divisor")
    (width,) = widths
    if not width.isidentifier() or width in changed_names(source, loop.node) | declared_names(source, body):
        raise Unsupported("a divisor that changes")
    height = _height(source, loop, field_of(divided[0], "right"))
    names, gone = dict[str, str](), list[Node]()
    for form, plain_name in zip(_forms(loop, width), ("row", "column"), strict=True):
        # `const T row = i / n;` is what the new loop counts; any other mention reads it.
        found = {n: match(source, n, f"const $T $v = {form};") for n in body.named_children if n.type == "declaration"}
        known = [n for n, parts in found.items() if parts is not None and source.of(parts["T"]) in {loop.type, "auto"}]
        names[form] = source.of(found[known[0]]["v"]) if known else fresh(source, loop.node, plain_name)
        gone += known[:1]
    replaced = [(n, names[form]) for n in divided for form in names if match(source, n, form)]
    kept = [lifted(source, n, source.render(n, replaced)) for n in body.named_children if n not in gone]
    (row, column), kind = names.values(), loop.type
    inner = [f"const {kind} {loop.name} = {row} * {width} + {column};", *(line for s in kept for line in s.split("\n"))]
    columns = [f"for ({kind} {column} = 0; {column} < {width}; ++{column}) {{", inner, "}"]
    edits.write(loop.node, [f"for ({kind} {row} = 0; {row} < {height}; ++{row}) {{", columns, "}"])


def _forms(loop: Loop, width: str) -> tuple[str, str]:
    return f"{loop.name} / {width}", f"{loop.name} % {width}"


def _height(source: Source, loop: Loop, width: Node) -> str:
    """The loop's bound divided by a divisor, where it is a product of names that holds it."""
    rows = loop.bound.over(host_code(source).polynomial(width))
    ((names, factor),) = rows.terms if rows is not None and len(rows.terms) == 1 else [((), 0)]
    function = enclosing_function(loop.node)
    declared = [source.of(n) for d in source.walk(function, "declaration") for n in names_declared(d)]
    if not factor or any(not name.text.isidentifier() or declared.count(name.text) > 1 for name in names):
        raise Unsupported("a divisor that does not divide the bound")
    return " * ".join([*([str(factor)] if factor != 1 or not names else []), *(name.text for name in names)])
