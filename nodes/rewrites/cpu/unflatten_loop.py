"""A flat loop that takes row and column from its counter by `/` and `%` becomes two loops.

A division per element costs some 10 ns where the arithmetic costs 0.3, and an index that goes round keeps the loop
scalar. Only where the counter runs over a product that the divisor divides, so that every row is whole.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_loops import canonical, counts_from_zero, has_pragma
from nodes.rewrites.analysis.host_source import (
    changed_names,
    declared_names,
    enclosing_function,
    host_code,
    identifiers,
    indentation,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import names_declared


@rule(
    "cpu",
    expected="no division per element, and an inner loop over consecutive elements that can be vectorised",
    speedup=2.0,
    helps={"memory", "latency", "compute"},
)
def rewrite(source: Source, facts: object) -> str | None:
    edits = Edits(source)
    for node in source.walk(None, "for_statement"):
        loop = canonical(source, node)
        if loop is None or not counts_from_zero(source, loop):
            continue
        with edits.attempt():
            _nest(source, loop, edits)
    return edits.apply() if edits.changes else None


def _nest(source: Source, loop: Loop, edits: Edits) -> None:
    if loop.body.type != "compound_statement" or has_pragma(source, loop):
        raise Unsupported("a pragma or no braces")
    quotients, rests = _divided(source, loop, "/"), _divided(source, loop, "%")
    widths = {source.of(node, "right") for node in (*quotients, *rests)}
    if len(widths) != 1 or any(source.walk(loop.body, "continue_statement", "break_statement", "preproc_call")):
        raise Unsupported("no / or % by one divisor")
    (width,) = widths
    if width in changed_names(source, loop.node) | declared_names(source, loop.body):
        raise Unsupported("a divisor that changes")
    divisor = (*quotients, *rests)[0].child_by_field_name("right")
    height, taken = _height(source, loop, divisor), identifiers(source, enclosing_function(loop.node))
    changes, names = Edits(source), []
    for nodes, plain in ((quotients, "row"), (rests, "column")):
        # `const T row = i / n;` is what the new loop counts; any other mention reads it.
        declared = [node for node in nodes if _is_declared(source, loop, node)]
        names.append(source.of(declared[0].parent, "declarator") if declared else free(plain, taken))
        taken.add(names[-1])
        for node in nodes:
            if node in declared[:1]:
                changes.remove(node.parent.parent)
            else:
                changes.replace(node, names[-1])
    (row, column), kind = names, loop.type
    text, depth = changes.apply().encode(), indentation(source, loop.node) + source.unit(loop.node)
    inner = text[loop.body.start_byte + 1 : loop.body.end_byte - 1 + len(text) - len(source.data)].decode()
    lines = [line.removeprefix(depth) for line in inner.strip("\n").rstrip().split("\n")]
    edits.write(
        loop.node,
        [
            f"for ({kind} {row} = 0; {row} < {height}; ++{row}) {{",
            [
                f"for ({kind} {column} = 0; {column} < {width}; ++{column}) {{",
                [f"const {kind} {loop.name} = {row} * {width} + {column};", *lines],
                "}",
            ],
            "}",
        ],
    )


def _divided(source: Source, loop: Loop, sign: str) -> list[Node]:
    """`counter / n` or `counter % n` of the body, n being a name."""
    found = (
        (node, match(source, node, f"{loop.name} {sign} $n")) for node in source.walk(loop.body, "binary_expression")
    )
    return [node for node, parts in found if parts is not None and parts["n"].type == "identifier"]


def _is_declared(source: Source, loop: Loop, node: Node) -> bool:
    """Whether the value is all that a constant of the body, of the counter's type, starts with."""
    declarator, declaration = node.parent, node.parent.parent
    if declarator.type != "init_declarator" or declaration.parent != loop.body or not source.alone(declaration):
        return False
    own = source.of(declaration, "type") in {loop.type, "auto"}
    alone = len(declaration.children_by_field_name("declarator")) == 1
    return own and alone and source.of(declarator, "declarator") not in changed_names(source, loop.body)


def _height(source: Source, loop: Loop, width: Node) -> str:
    """The loop's bound divided by a divisor, where it is a product of names that holds it."""
    code = host_code(source)
    rows = loop.bound.over(code.polynomial(width))
    ((names, factor),) = rows.terms if rows is not None and len(rows.terms) == 1 else [((), 0)]
    function = enclosing_function(loop.node)
    inside = [source.of(n) for d in source.walk(function, "declaration") for n in names_declared(d)]
    if not factor or any(not name.text.isidentifier() or inside.count(name.text) > 1 for name in names):
        raise Unsupported("a divisor that does not divide the bound")
    return " * ".join([*([str(factor)] if factor != 1 or not names else []), *(name.text for name in names)])
