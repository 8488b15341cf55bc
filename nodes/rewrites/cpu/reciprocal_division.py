"""A division by what stays the same in a loop becomes a multiplication by its reciprocal, taken once before the loop.

A vector division holds the divider for ten cycles where a multiplication takes one. The quotient may differ in its last
bit, so loops whose values are rounded to integers are left alone.
"""

from __future__ import annotations

from nodes.rewrites.analysis.host_loops import loops, put_in_front, varying
from nodes.rewrites.analysis.host_source import declared_type, enclosing_function, identifiers
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import LOOPS, field_of

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
    for loop in loops(source):
        if not source.has(loop.body, *LOOPS):
            with edits.attempt():
                _divisions(source, loop, edits)
    return edits.apply() if edits.changes else None


def _divisions(source: Source, loop: Loop, edits: Edits) -> None:
    for call in source.walk(loop.body, "call_expression"):
        called = source.of(call, "function").removeprefix("std::")
        if called.removeprefix("l").startswith(_ROUNDING) or "int" in called:
            return
    variant, names = varying(source, loop), dict[str, str]()
    for node in source.walk(loop.body, "binary_expression"):
        found = match(source, node, "$a / $b")
        name = source.of(found["b"]) if found is not None and declared_type(source, found["b"]) == "float" else ""
        if name and name not in variant and identifiers(source, found["a"]) & variant:
            names[name] = free(f"inverse_{name}", identifiers(source, enclosing_function(loop.node)))
            edits.replace(field_of(node, "operator"), "*")
            edits.replace(field_of(node, "right"), names[name])
    if names:
        put_in_front(edits, loop, [f"const float {new} = 1.0f / {name};" for name, new in names.items()])
