"""`tanhf` from one fast exponential: `1 - 2 / (1 + e^(2x))`.

Right to about 1e-7 absolute, which is what 16-bit outputs and a following `1 + tanh(x)` need; a plain tanh of tiny numbers
may need more, and then the checks refuse it.
"""

from __future__ import annotations

from nodes.rewrites import Facts
from nodes.rewrites.device_code import Code, require
from nodes.rewrites.fast_math import kind
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"compute", "memory", "latency"})
EXPECTED = "a hyperbolic tangent in 6 instructions instead of about 25 and a branch"
SPEEDUP = 1.05
ORDER = 26

TANH = """\
// Absolute error about 1e-7; the ends are exact: e^(2x) overflows to infinity and vanishes to 0.
__device__ __forceinline__ float fast_tanh(float x) { return 1.0f - __fdividef(2.0f, 1.0f + __expf(2.0f * x)); }
"""


def rewrite(source: Source, facts: Facts) -> str | None:
    code = Code(source)
    edits = Edits(source)
    for call in source.walk(None, "call_expression"):
        function, arguments = call.child_by_field_name("function"), call.child_by_field_name("arguments")
        if function is None or arguments is None or arguments.named_child_count != 1:
            continue
        name = source.of(function)
        if name == "tanhf" or (name in {"tanh", "std::tanh"} and kind(code, arguments.named_children[0]) == "float"):
            edits.replace(function, "fast_tanh")
    if not edits.changes:
        return None
    try:
        require(edits, code, TANH, "fast_tanh")
        return edits.apply()
    except Unsupported:
        return None
