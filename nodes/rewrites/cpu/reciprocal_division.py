"""A division by what stays the same in a loop becomes a multiplication by its reciprocal, taken once before the loop.

A vector division holds the divider for ten cycles where a multiplication takes one. The quotient may differ in its last
bit, so loops whose values are rounded to integers are left alone.
"""

from __future__ import annotations

from nodes.rewrites.analysis.host_loops import loops
from nodes.rewrites.analysis.host_source import (
    changed_names,
    declared_type,
    enclosing_function,
    fields,
    identifiers,
    indentation,
    operator,
    pragma_node,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source

_ROUNDING = ("round", "rint", "nearbyint", "floor", "ceil", "trunc", "int")


@rule(
    "cpu",
    expected="one division a row instead of one an element",
    speedup=1.1,
    helps={"memory", "latency", "compute"},
    after=("vector_math",),
)
def rewrite(source: Source, facts: object) -> str | None:
    edits = Edits(source)
    done: list[Loop] = []
    for loop in reversed(loops(source)):  # innermost first
        if any(loop.node.start_byte <= other.node.start_byte < loop.node.end_byte for other in done):
            continue
        done.append(loop)
        with edits.attempt():
            _divisions(source, loop, edits)
    return edits.apply() if edits.changes else None


def _divisions(source: Source, loop: Loop, edits: Edits) -> None:
    for call in source.walk(loop.body, "call_expression"):
        called = source.of(call, "function").removeprefix("std::").removeprefix("static_cast<")
        if called.removeprefix("l").startswith(_ROUNDING) or "int" in called:
            return
    variant = {loop.name} | changed_names(source, loop.body)
    for node in source.walk(loop.body, "init_declarator"):
        variant |= identifiers(source, node.child_by_field_name("declarator"))
    names: dict[str, str] = {}
    taken = identifiers(source, enclosing_function(loop.node))
    indent = indentation(source, loop.node)
    for node in source.walk(loop.body, "binary_expression"):
        divisor, dividend = fields(node, "right", "left")
        if operator(source, node) != "/" or divisor.type != "identifier":
            continue
        name = source.of(divisor)
        if name in variant or declared_type(source, divisor) != "float" or not identifiers(source, dividend) & variant:
            continue
        if name not in names:
            fresh = f"inverse_{name}"
            while fresh in taken:
                fresh += "_"
            names[name] = fresh
        edits.replace(node.child_by_field_name("operator"), "*")
        edits.replace(divisor, names[name])
    if names:
        place = pragma_node(source, loop.node) or loop.node
        lines = "".join(f"const float {new} = 1.0f / {name};\n{indent}" for name, new in names.items())
        edits.insert(place.start_byte, lines)
