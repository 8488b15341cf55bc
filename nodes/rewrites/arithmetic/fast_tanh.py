"""`tanhf` from one fast exponential: `1 - 2 / (1 + e^(2x))`.

Right to about 1e-7 absolute, which is what a following `1 + tanh(x)` needs. Where the tangent is used by itself, numbers
below a quarter take their series instead, so that it is right to about 4e-7 relative.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import code_of
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.arithmetic.fast_math import kind
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of


@rule(
    "cuda",
    expected="a hyperbolic tangent in 6 instructions instead of about 25 and a branch",
    speedup=1.05,
    helps={"memory", "latency", "compute"},
    after=("canonicalize_reductions",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    absolute = True
    for call in source.walk(None, "call_expression"):
        function, arguments = field_of(call, "function"), field_of(call, "arguments")
        if function is None or arguments is None or arguments.named_child_count != 1:
            continue
        name = source.of(function)
        if name == "tanhf" or (name in {"tanh", "std::tanh"} and kind(code, arguments.named_children[0]) == "float"):
            edits.replace(function, "fast_tanh")
            absolute = absolute and _is_added_to_one(source, call)
    require(edits, code, "fast_tanh" if absolute else "fast_tanh_relative")
    return edits.apply()


def _is_added_to_one(source: Source, call: Node) -> bool:
    """Whether the call stands in `1 + tanh(x)`, which leaves nothing of what is small."""
    parent = call.parent
    if parent is None or parent.type != "binary_expression" or source.of(parent, "operator") != "+":
        return False
    sides = [source.of(field_of(parent, f)).rstrip("fF") for f in ("left", "right")]
    return any(side in {"1", "1.", "1.0"} for side in sides)
