"""Calls into libm inside loops become branch-free C++ that the compiler vectorises.

`expf` is a call per element: g++ has no vector form of it without -ffast-math. The functions below are straight-line
code on floats and their bits, so a loop around them becomes AVX code as it stands. Ranges are cut off on the bits as
integers, where the compiler has a minimum instruction: cut off by `x < lowest ? lowest : x`, g++ 12 splits the whole
computation by the two constants (2.5 times slower, measured).

Errors against fp64, over every float32 that is not a NaN (tests/nodes/rewrites/test_vector_math.py): exp 2 units
in the last place (1.1 over lanes, see lanes_text.py), log 1.5, log1p 2, tanh 2.5, erf 2.5; NaN, infinities, overflow
and results below 2^-126 as in libm.
"""

from __future__ import annotations

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.host_loops import functions, is_float, overloaded
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import after_includes, include
from nodes.rewrites.syntax.source import Edits, Source

_BITS = """\
static inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return bits;
}

static inline float float_of(uint32_t bits) {
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
}

// On bits, because g++ 12 compares a float that came from a _Float16 by a call.
static inline bool is_nan(float value) { return (bits_of(value) & 0x7fffffffu) > 0x7f800000u; }
"""

_EXP = """\
// e^x to 2 ulp: x = n ln 2 + r, a polynomial for e^r, then 2^n in two factors so that tiny results stay subnormal.
static inline float simd_exp(float x) {
    const uint32_t from_above = static_cast<uint32_t>(std::min(static_cast<int32_t>(bits_of(x)), 0x42b20000));  // 89
    const float inside = float_of(std::min(from_above, 0xc2d00000u));                                           // -104
    const float shifted = inside * 1.44269504f + 12583166.0f;  // 1.5 * 2^23 + 254: its low bits hold n + 254
    const float n = shifted - 12583166.0f;
    const float r = (inside - n * 0.693145752f) - n * 1.42860677e-6f;
    float power = 0.00831250105f;
    power = power * r + 0.0418903312f;
    power = power * r + 0.166671154f;
    power = power * r + 0.499992303f;
    power = power * r + 1.0f;
    power = power * r + 1.0f;
    const uint32_t exponent = bits_of(shifted), half = exponent >> 1;
    const float scaled = power * float_of(half << 23) * float_of((exponent - half) << 23);
    return is_nan(x) ? x : scaled;
}
"""

_LOG = """\
// ln x to 1.5 ulp: x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), a polynomial for ln(1 + f).
static inline float simd_log(float x) {
    const bool subnormal = x < 1.17549435e-38f;
    const uint32_t bits = bits_of(subnormal ? x * 8388608.0f : x);
    const uint32_t from_half = bits - 0x3f3504f3u;  // sqrt(1/2)
    const float n = static_cast<float>((static_cast<int32_t>(from_half) >> 23) - (subnormal ? 23 : 0));
    const float f = float_of((from_half & 0x007fffffu) + 0x3f3504f3u) - 1.0f;
    float tail = -0.0763451966f;
    tail = tail * f + 0.127615696f;
    tail = tail * f - 0.131601708f;
    tail = tail * f + 0.142017588f;
    tail = tail * f - 0.166233586f;
    tail = tail * f + 0.200012269f;
    tail = tail * f - 0.250008210f;
    tail = tail * f + 0.333333317f;
    const float square = f * f;
    const float small = tail * f * square + n * -2.12194440e-4f - 0.5f * square;
    const float inside = (f + small) + n * 0.693359375f;
    const float ends = x == 0.0f ? -INFINITY : (x > 0.0f ? x : NAN);
    return bits_of(x) - 1u < 0x7f7fffffu ? inside : ends;
}
"""

_LOG1P = """\
// ln(1 + x): the rounding of 1 + x is put back by its first-order term.
static inline float simd_log1p(float x) {
    const float sum = 1.0f + x;
    const float lost = x - (sum - 1.0f);
    const float log_sum = simd_log(sum);
    return bits_of(sum) - 1u < 0x7f7fffffu ? log_sum + lost / sum : log_sum;
}
"""

_TANH = """\
// tanh x to 2.5 ulp: an odd polynomial near zero, 1 - 2 / (e^2x + 1) elsewhere.
static inline float simd_tanh(float x) {
    const float size = std::fabs(x), square = x * x;
    float tail = -0.00566078666f;
    tail = tail * square + 0.0206020051f;
    tail = tail * square - 0.0537292290f;
    tail = tail * square + 0.133313289f;
    tail = tail * square - 0.333332783f;
    const float near = x + x * square * tail;
    const float far = 1.0f - 2.0f / (simd_exp(2.0f * size) + 1.0f);
    return size < 0.625f ? near : std::copysign(far, x);
}
"""

_ERF = """\
// erf x to 2.5 ulp: an odd polynomial up to 1, 1 - e^-p(x) with a polynomial p beyond.
static inline float simd_erf(float x) {
    const float size = float_of(std::min(bits_of(x) & 0x7fffffffu, 0x40800000u));  // 4: erf is 1 from there on
    const float square = x * x;
    float near = -0.000566015493f;
    near = near * square + 0.00492478931f;
    near = near * square - 0.0267177071f;
    near = near * square + 0.112804116f;
    near = near * square - 0.376123557f;
    near = near * square + 1.12837913f;
    float decay = -0.000185573867f;
    decay = decay * size + 0.00293960590f;
    decay = decay * size - 0.0218053128f;
    decay = decay * size + 0.103037358f;
    decay = decay * size + 0.638225690f;
    decay = decay * size + 1.12704003f;
    decay = decay * size + 0.000353721084f;
    const float far = std::copysign(1.0f - simd_exp(-decay), x);
    return size <= 1.0f ? near * x : (is_nan(x) ? x : far);
}
"""

_MAX = """\
// fmaxf as two comparisons that vectorise: the other one where one is a NaN.
static inline float simd_max(float a, float b) { return a > b || is_nan(b) ? a : b; }
"""

_MIN = """\
// fminf as two comparisons that vectorise: the other one where one is a NaN.
static inline float simd_min(float a, float b) { return a < b || is_nan(b) ? a : b; }
"""

# name -> (definition, what it is made of)
_FUNCTIONS: dict[str, tuple[str, tuple[str, ...]]] = {
    "bits_of": (_BITS, ()),
    "simd_exp": (_EXP, ("bits_of",)),
    "simd_log": (_LOG, ("bits_of",)),
    "simd_log1p": (_LOG1P, ("simd_log",)),
    "simd_tanh": (_TANH, ("simd_exp",)),
    "simd_erf": (_ERF, ("simd_exp",)),
    "simd_max": (_MAX, ("bits_of",)),
    "simd_min": (_MIN, ("bits_of",)),
}
_DEFINED = "".join(text for text, _ in _FUNCTIONS.values())
_FLOAT_ONLY = {
    "expf": "simd_exp", "logf": "simd_log", "log1pf": "simd_log1p", "tanhf": "simd_tanh", "erff": "simd_erf",
    "fmaxf": "simd_max", "fminf": "simd_min",
}  # fmt: skip
# Where a float and literals without an `f` make a double of the argument, what it rounds to is as good for these. It is not
# for a logarithm: ln(1.0 + x) of a small x lives off the digits that a float does not have.
_TOLERANT = frozenset({"exp", "tanh", "erf"})
# Overloaded in <cmath>: float only if the argument is.
_OVERLOADED = {name[:-1]: name for name in _FLOAT_ONLY}


@rule(
    "cpu",
    expected="elements per cycle rise several-fold: the call into libm per element becomes vector arithmetic",
    speedup=3.0,
    helps={"memory", "latency", "compute"},
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: object) -> str | None:
    own = functions(source)
    edits, used = Edits(source), set()
    for call in source.walk(None, "call_expression"):
        called = call.child_by_field_name("function")
        name = source.of(called)
        arguments = [node for node in call.child_by_field_name("arguments").named_children if node.type != "comment"]
        plain = name.removeprefix("std::") if name.removeprefix("std::") in _FLOAT_ONLY else name.removeprefix("::")
        if overloaded(source, name) and all(is_float(source, argument) for argument in arguments):
            plain = _OVERLOADED.get(name.removeprefix("std::"), plain)
        elif name.removeprefix("std::") in _TOLERANT and len(arguments) == 1 and _of_a_float(source, arguments[0]):
            plain = _OVERLOADED[name.removeprefix("std::")]
        if plain not in _FLOAT_ONLY or plain in own or not _in_a_loop(source, call):
            continue
        edits.replace(called, _FLOAT_ONLY[plain])
        used.add(_FLOAT_ONLY[plain])
    if not used:
        return None
    needed = _closure(used)
    helpers = {"bits_of", "float_of", "is_nan", *_FUNCTIONS}
    if any(name in own and source.of(own[name][0].node) not in _DEFINED for name in helpers):
        return None  # the file has other functions of these names
    text = "\n".join(_FUNCTIONS[name][0] for name in _FUNCTIONS if name in needed and name not in own)
    if text:
        for header in ("algorithm", "cmath", "cstdint", "cstring"):
            include(source, edits, header)
        edits.insert(after_includes(source), f"\n{text}")
    return edits.apply()


def _of_a_float(source: Source, node: Node) -> bool:
    """Whether an expression is arithmetic on floats and literals, and holds a float at all."""
    leaves, stack = [], [node]
    while stack:
        here = stack.pop()
        if here.type in {"parenthesized_expression", "unary_expression"}:
            stack.append(here.named_children[-1])
        elif here.type == "binary_expression" and source.of(here.child_by_field_name("operator")) in {
            "+",
            "-",
            "*",
            "/",
        }:
            stack += [here.child_by_field_name("left"), here.child_by_field_name("right")]
        elif here.type != "number_literal":
            leaves.append(here)
    return bool(leaves) and all(is_float(source, leaf) for leaf in leaves)


def _closure(names: set[str]) -> set[str]:
    found, stack = set(), list(names)
    while stack:
        name = stack.pop()
        if name not in found:
            found.add(name)
            stack.extend(_FUNCTIONS[name][1])
    return found


def _in_a_loop(source: Source, node: Node) -> bool:
    """Inside a loop, or in a function that is called inside one."""
    seen: set[str] = set()
    stack = [node]
    while stack:
        here = stack.pop().parent
        while here is not None and here.type not in {"for_statement", "while_statement", "do_statement"}:
            if here.type == "function_definition":
                break
            here = here.parent
        if here is None:
            continue
        if here.type != "function_definition":
            return True
        names = [name for name, group in functions(source).items() if any(f.node == here for f in group)]
        for name in names:
            if name not in seen:
                seen.add(name)
                stack.extend(
                    call
                    for call in source.walk(None, "call_expression")
                    if source.of(call.child_by_field_name("function")).partition("<")[0] == name
                )
    return False
