"""A division by what stays the same in a loop becomes a multiplication by its reciprocal, taken once before the loop.

A vector division holds the divider for ten cycles where a multiplication takes one. The quotient may differ in its last
bit, so loops whose values are rounded to integers are left alone.
"""

from __future__ import annotations

from nodes.rewrites.analysis.host_loops import loops, put_in_front, varying
from nodes.rewrites.analysis.host_source import declared_type, enclosing_function, fields, identifiers, operator
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source, inside

_ROUNDING = ("round", "rint", "nearbyint", "floor", "ceil", "trunc", "int")


@rule(
    "cpu",
    expected="one division a row instead of one an element",
    speedup=1.1,
    helps={"memory", "latency", "compute"},
    after=("vector_math",),
)
def rewrite(source: Source, facts: object) -> str | None:
    edits, found = Edits(source), loops(source)
    for loop in found:
        if not any(other is not loop and inside(other.node, loop.node) for other in found):  # innermost
            with edits.attempt():
                _divisions(source, loop, edits)
    return edits.apply() if edits.changes else None


def _divisions(source: Source, loop: Loop, edits: Edits) -> None:
    for call in source.walk(loop.body, "call_expression"):
        called = source.of(call, "function").removeprefix("std::").removeprefix("static_cast<")
        if called.removeprefix("l").startswith(_ROUNDING) or "int" in called:
            return
    variant, taken = varying(source, loop), identifiers(source, enclosing_function(loop.node))
    names: dict[str, str] = {}
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
        put_in_front(edits, loop, [f"const float {new} = 1.0f / {name};" for name, new in names.items()])
