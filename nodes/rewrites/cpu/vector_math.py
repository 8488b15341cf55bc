"""Calls into libm inside loops take the C library's own vector forms of them.

`expf` is a call per element: g++ takes libmvec's forms of it for four, eight or sixteen elements only under -ffast-math, or
where the function is declared to have them, which is what this step does. `const` says that it sets no errno, so that a call
under a condition is made for every element. Forms that belong to `std` become the float function's name first.

Measured on one core of a Xeon (Sapphire Rapids, g++ 12.2, glibc 2.36), processor time, beside polynomials written out in the
source, which this step used before: with vectors of AVX2 silu float32 [32, 4096] 63 us and 419, gelu [1024, 4096] 5.3 ms and 47,
softmax [2048, 2048] 6.6 ms and 28.5; with those of AVX-512 gelu 2.3 ms and 2.7. Only the exponential of sixteen lanes is faster
written out (33 us and 46): see lanes_text.py.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.host_source import arguments, host_code, is_float, overloaded, runs_again
from nodes.rewrites.prelude import text_of
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import behind_includes, include
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import field_of

VECTOR_FUNCTIONS = {
    **dict.fromkeys((
        "acosf", "acoshf", "asinf", "asinhf", "atanf", "atanhf", "cbrtf", "cosf", "coshf", "erff", "erfcf", "expf", "exp2f",
        "expm1f", "logf", "log10f", "log1pf", "log2f", "sinf", "sinhf", "tanf", "tanhf",
    ), 1),
    **dict.fromkeys(("atan2f", "hypotf", "powf"), 2),
}  # fmt: skip
"""Functions of floats of which glibc 2.35 has vector forms on x86, and how many arguments they take."""
_EXTREMES = {"fmaxf": "simd_max", "fminf": "simd_min"}
_DECLARED = """
// With vector forms by the C library, which g++ takes by itself only under -ffast-math.
#if defined(__x86_64__) && __GLIBC__ == 2 && __GLIBC_MINOR__ >= 35
extern "C" {{
{functions}
}}
#endif
"""
_FUNCTION = """\
#pragma omp declare simd notinbranch
__attribute__((const)) float {name}({arguments}) noexcept;"""


@rule(
    "cpu",
    expected="elements per cycle rise several-fold: the call into libm per element becomes one per vector",
    speedup=3.0,
    helps={"memory", "latency", "compute"},
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: object) -> str | None:
    own, edits, used = host_code(source).overloads, Edits(source), set()
    for call in source.walk(None, "call_expression"):
        name = _float_function(source, call)
        if name in {*VECTOR_FUNCTIONS, *_EXTREMES} - own.keys() and runs_again(source, call):
            name = _EXTREMES.get(name, name)
            if source.of(call, "function") != name:
                edits.replace(field_of(call, "function"), name)
            used.add(name)
    extremes = used & set(_EXTREMES.values()) - own.keys()
    if extremes and "is_nan" in own:
        return None
    missing = sorted(used & VECTOR_FUNCTIONS.keys() - declared(source))
    for header in (*(("cmath",) if extremes or missing else ()), *(("cstdint", "cstring") if extremes else ())):
        include(source, edits, header)
    if extremes:
        edits.insert(behind_includes(source), f"\n{text_of('simd_extremes', '.h')}")
    if missing:
        lines = (
            _FUNCTION.format(name=name, arguments=", ".join(["float"] * VECTOR_FUNCTIONS[name])) for name in missing
        )
        edits.insert(behind_includes(source), _DECLARED.format(functions="\n".join(lines)))
    return edits.apply() if edits.changes else None


def declared(source: Source) -> set[str]:
    """Functions that the file says to have vector forms."""
    return set(re.findall(r"#pragma omp declare simd notinbranch\n.*?(\w+)\(float", source.text))


def _float_function(source: Source, call: Node) -> str:
    """The name of the function of floats that a call is one of, or comes to."""
    name = source.of(call, "function").removeprefix("::")
    floats = overloaded(source, name) and all(is_float(source, argument) for argument in arguments(call))
    return name.removeprefix("std::") + "f" * floats
