"""Calls into libm inside loops take the C library's own vector forms of them.

`expf` is a call per element: g++ takes libmvec's forms of it for four, eight or sixteen elements only under -ffast-math, or
where the function is declared to have them, which is what this step does. `const` says that it sets no errno, so that a call
under a condition is made for every element. Forms that take doubles or belong to `std` become the float function's name first.

Measured on one core of a Xeon (Sapphire Rapids, g++ 12.2, glibc 2.36), processor time, beside polynomials written out in the
source, which this step used before: with vectors of AVX2 silu float32 [32, 4096] 63 us and 419, gelu [1024, 4096] 5.3 ms and 47,
softmax [2048, 2048] 6.6 ms and 28.5; with those of AVX-512 gelu 2.3 ms and 2.7. Only the exponential of sixteen lanes is faster
written out (33 us and 46): see lanes_text.py.
"""

from __future__ import annotations

import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.host_loops import runs_again
from nodes.rewrites.analysis.host_source import arguments, functions, is_float, operator, overloaded
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import behind_includes, include
from nodes.rewrites.syntax.source import Edits, Source

VECTOR_FUNCTIONS = {
    **dict.fromkeys((
        "acosf", "acoshf", "asinf", "asinhf", "atanf", "atanhf", "cbrtf", "cosf", "coshf", "erff", "erfcf", "expf", "exp2f",
        "expm1f", "logf", "log10f", "log1pf", "log2f", "sinf", "sinhf", "tanf", "tanhf",
    ), 1),
    **dict.fromkeys(("atan2f", "hypotf", "powf"), 2),
}  # fmt: skip
"""Functions of floats of which glibc 2.35 has vector forms on x86, and how many arguments they take."""
_EXTREMES = {"fmaxf": "simd_max", "fminf": "simd_min"}
# Where a float and literals without an `f` make a double of the argument, what it rounds to is as good for these. It is not
# for a logarithm: ln(1.0 + x) of a small x lives off the digits that a float does not have.
_TOLERANT = frozenset({"exp", "tanh", "erf"})
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
_IS_NAN = """
// On bits, because g++ 12 compares a float that came from a _Float16 by a call.
static inline bool is_nan(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return (bits & 0x7fffffffu) > 0x7f800000u;
}
"""
_EXTREME = """
// f{which}f as comparisons that vectorise: the other one where one is a NaN.
static inline float simd_{which}(float a, float b) {{ return a {sign} b || is_nan(b) ? a : b; }}
"""
_TEXTS = {
    "is_nan": _IS_NAN,
    "simd_max": _EXTREME.format(which="max", sign=">"),
    "simd_min": _EXTREME.format(which="min", sign="<"),
}


@rule(
    "cpu",
    expected="elements per cycle rise several-fold: the call into libm per element becomes one per vector",
    speedup=3.0,
    helps={"memory", "latency", "compute"},
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: object) -> str | None:
    own, edits, used = functions(source), Edits(source), set()
    for call in source.walk(None, "call_expression"):
        name = _float_function(source, call)
        if name in {*VECTOR_FUNCTIONS, *_EXTREMES} - own.keys() and runs_again(source, call):
            name = _EXTREMES.get(name, name)
            if source.of(call, "function") != name:
                edits.replace(call.child_by_field_name("function"), name)
            used.add(name)
    text = _definitions(source, used)
    if text is None or not (text or edits.changes):
        return None
    if text:
        for header in ("cmath", *(("cstdint", "cstring") if "is_nan" in text else ())):
            include(source, edits, header)
        edits.insert(behind_includes(source), text)
    return edits.apply()


def declared(source: Source) -> set[str]:
    """Functions that the file says to have vector forms."""
    return set(re.findall(r"#pragma omp declare simd notinbranch\n.*?(\w+)\(float", source.text))


def _definitions(source: Source, used: set[str]) -> str | None:
    """The text that the used names need and the file lacks; None where it has other functions of these names."""
    own = functions(source)
    extremes = sorted(used & set(_EXTREMES.values()))
    needed = ["is_nan", *extremes] if extremes else []
    if any(name in own and source.of(own[name][0].node) not in _TEXTS[name] for name in needed):
        return None
    text = "".join(_TEXTS[name] for name in needed if name not in own)
    missing = sorted(used & VECTOR_FUNCTIONS.keys() - declared(source))
    declarations = [
        _FUNCTION.format(name=name, arguments=", ".join(["float"] * VECTOR_FUNCTIONS[name])) for name in missing
    ]
    return text + (_DECLARED.format(functions="\n".join(declarations)) if missing else "")


def _float_function(source: Source, call: Node) -> str:
    """The name of the function of floats that a call is one of, or comes to."""
    name = source.of(call, "function").removeprefix("::")
    plain = name.removeprefix("std::")
    given = arguments(call)
    floats = overloaded(source, name) and all(is_float(source, argument) for argument in given)
    tolerant = plain in _TOLERANT and len(given) == 1 and _of_a_float(source, given[0])
    return f"{plain}f" if floats or tolerant else plain


def _of_a_float(source: Source, node: Node) -> bool:
    """Whether an expression is arithmetic on floats and literals, and holds a float at all."""
    leaves, stack = [], [node]
    while stack:
        here = stack.pop()
        if here.type in {"parenthesized_expression", "unary_expression"}:
            stack.append(here.named_children[-1])
        elif here.type == "binary_expression" and operator(source, here) in set("+-*/"):
            stack += [here.child_by_field_name("left"), here.child_by_field_name("right")]
        elif here.type != "number_literal":
            leaves.append(here)
    return bool(leaves) and all(is_float(source, leaf) for leaf in leaves)
