"""`#pragma omp simd` on inner loops whose iterations are provably independent, with their reductions.

Without it g++ -O3 does not reorder a float sum or maximum, and guards every loop by run-time overlap checks between
the pointers. A loop that still calls into libm is left alone: the pragma would not help it.
"""

from __future__ import annotations

from nodes.rewrites.analysis import host_loops as _loops
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported

# What g++ 12 turns into vector instructions; any other call keeps the loop scalar.
VECTOR_CALLS = frozenset({
    "fabs", "fabsf", "std::fabs", "abs", "fma", "fmaf", "floor", "floorf", "ceil", "ceilf", "trunc", "truncf",
    "rint", "rintf", "nearbyint", "nearbyintf", "copysign", "copysignf", "min", "max", "clamp", "sqrt", "sqrtf",
    "isnan", "signbit",
})  # fmt: skip


SHORT = 8
"""Iterations, known when it is compiled, up to which a loop is unrolled whole. Marked, it would be vectors of a few lanes:
a convolution of width 4 took 1.6 times as long (one Zen 4 core, 64 x 256 float32: 114 us, 72 without)."""


@rule(
    "cpu",
    expected="instructions per element fall by up to 16: sums and maxima are kept per vector lane, no overlap checks",
    speedup=1.8,
    helps={"memory", "latency", "compute"},
    after=("vector_math",),
)
def rewrite(source: Source, facts: object) -> str | None:
    edits, own = Edits(source), _loops.functions(source)
    for loop in _loops.loops(source):
        pragma = _loops.pragma_before(source, loop.node)
        shared = pragma.startswith("#pragma omp parallel for ") and " for simd" not in pragma
        if (pragma and not shared) or _loops.over_lanes(source, loop.node):
            continue
        if loop.step is not None and not (source.of(loop.step).isdigit() and int(source.of(loop.step)) <= SHORT):
            continue
        if _short(source, loop):
            continue
        try:
            found, carried = _loops.unordered(source, loop)
            libm = {name for name in found.calls if name not in VECTOR_CALLS and name not in own}
            if found.inner_loops or found.called_loops or libm:
                continue
            clauses = _loops.reduction_clauses(carried)
            indent = _loops.indentation(source, loop.node)
        except Unsupported:
            continue
        if shared:
            combined = pragma.replace(" for ", " for simd ", 1).replace(" if (", " if (parallel: ")
            edits.replace(_loops.pragma_node(source, loop.node), f"{combined}\n")
            continue
        edits.insert(loop.node.start_byte, f"#pragma omp simd{clauses}\n{indent}")
    return edits.apply() if edits.changes else None


def _short(source: Source, loop: _loops.Loop) -> bool:
    """Whether the loop runs from 0 to a small number that stands in the file."""
    bound = source.of(loop.bound)
    if loop.bound.type == "identifier":
        inside = _loops.initial_value(source, loop.bound)
        bound = source.of(inside) if inside is not None else str(_loops.constants(source).get(bound, ""))
    return source.of(loop.start) == "0" and bound.isdigit() and int(bound) <= SHORT
