"""`#pragma omp simd` on inner loops whose iterations are provably independent, with their reductions.

Without it g++ -O3 does not reorder a float sum or maximum, and guards every loop by run-time overlap checks between
the pointers. A loop with a call that has no vector form is left alone: the pragma would not help it.
"""

from __future__ import annotations

from nodes.rewrites.analysis.host_dependence import reduction_clauses, unordered
from nodes.rewrites.analysis.host_effects import Effects
from nodes.rewrites.analysis.host_loops import loops, put_in_front
from nodes.rewrites.analysis.host_source import functions, pragma_before
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.cpu.vector_math import declared
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import pragma_of

# What g++ 12 turns into vector instructions by itself; any other call keeps the loop scalar.
_VECTOR_CALLS = frozenset({
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
    edits = Edits(source)
    for loop in loops(source):
        pragma = pragma_before(source, loop.node)
        shared = pragma.startswith("#pragma omp parallel for ") and " for simd" not in pragma
        if (pragma and not shared) or _short(loop):
            continue
        if loop.step_node is not None and not (
            source.of(loop.step_node).isdigit() and int(source.of(loop.step_node)) <= SHORT
        ):
            continue
        with edits.attempt():
            found, carried = unordered(source, loop)
            if found.inner_loops or not vectorizes(source, found):
                continue
            if shared:
                combined = pragma.replace(" for ", " for simd ", 1).replace(" if (", " if (parallel: ")
                edits.replace(pragma_of(loop.node), f"{combined}\n")
            else:
                put_in_front(edits, loop, [f"#pragma omp simd{reduction_clauses(carried)}"])
    return edits.apply() if edits.changes else None


def vectorizes(source: Source, found: Effects) -> bool:
    """Whether all that an iteration calls has a vector form, or is inlined and without a loop."""
    return not found.called_loops and found.calls <= _VECTOR_CALLS | functions(source).keys() | declared(source)


def _short(loop: Loop) -> bool:
    """Whether the loop runs from 0 to a small number that stands in the file."""
    return loop.start.value == 0 and loop.bound.value is not None and loop.bound.value <= SHORT
