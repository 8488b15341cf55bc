"""Floating-point numbers as CUDA's functions see them, infinities and NaN among them, and structs of them."""

from __future__ import annotations

import math
from collections.abc import Callable

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.syntax.tree import children_of, field_of

NEAR = 1e-9
LN2 = math.log(2.0)
FLT_MAX = 3.4028234663852886e38
BASES = {**dict.fromkeys(("expf", "__expf", "exp"), 1.0), **dict.fromkeys(("exp2f", "exp2"), LN2)}
"""Exponential functions, each with what its argument is multiplied by."""
FUNCTIONS: dict[str, Callable[..., float]] = {
    "isinf": lambda v: int(math.isinf(v)), "isnan": lambda v: int(math.isnan(v)), "isfinite": lambda v: int(math.isfinite(v)),
    "fabsf": abs, "fmaf": lambda a, b, c: a * b + c, "__fmaf_rn": lambda a, b, c: a * b + c,
    "__fmul_rn": lambda a, b: a * b, "__fadd_rn": lambda a, b: a + b, "__fsub_rn": lambda a, b: a - b,
}  # fmt: skip
EXTREMES = {
    **dict.fromkeys(("fmaxf", "max", "fmax", "std::max", "__hmax"), "max"),
    **dict.fromkeys(("fminf", "min", "fmin", "std::min", "__hmin"), "min"),
}
ELEMENT_BYTES = {
    "float": 4, "__half": 2, "half": 2, "__nv_bfloat16": 2, "nv_bfloat16": 2, "int8_t": 1, "uint8_t": 1, "char": 1,
    "signed char": 1, "unsigned char": 1, "bool": 1, "__nv_fp8_e4m3": 1, "__nv_fp8_storage_t": 1, "int": 4, "int32_t": 4, "uint32_t": 4,
    "double": 8, "int64_t": 8, "int16_t": 2, "uint16_t": 2, "short": 2, "unsigned": 4,
    "float2": 8, "int2": 8, "uint2": 8,
    "char2": 2, "uchar2": 2, "char4": 4, "uchar4": 4, "short2": 4, "ushort2": 4, "short4": 8, "ushort4": 8, "uint": 4,
    "unsigned int": 4, "uint64_t": 8, "float4": 16, "int4": 16, "uint4": 16, "double2": 16,
}  # fmt: skip
"""What an element takes, by its type."""


def power(value: float) -> float:
    try:
        return math.exp(value)
    except OverflowError:
        return math.inf


def close(a: object, b: object) -> bool:
    if not isinstance(a, (int, float)) or not isinstance(b, (int, float)):
        return False
    if math.isnan(a) or math.isnan(b):
        return math.isnan(a) and math.isnan(b)
    return a == b or (math.isfinite(a) and math.isfinite(b) and abs(a - b) <= NEAR * (1.0 + abs(a) + abs(b)))


def base_of(code: Code, name: str) -> float:
    """What an exponential function multiplies its argument by, 0 for other functions."""
    return 0.0 if name.split("::")[-1] in code.overloads else BASES.get(name, 0.0)


def fields_of(code: Code, kind: str) -> list[str]:
    """The fields of a struct of the file that has nothing but numbers in it, in order; none for any other type."""
    source, kind = code.source, code.plain_type(kind).removeprefix("struct ").strip()
    for node in source.walk(None, "struct_specifier", "function_definition"):
        name = field_of(node, "name")
        if source.of(node, "type", "name") == "__align__":  # `struct __align__(8) Pair { ... }` reads as a function
            name = next(source.walk(field_of(node, "declarator"), "identifier"), None)
        if source.of(name) == kind and field_of(node, "body") is not None:
            members = children_of(node, "body")
            declared = [d for member in members for d in member.children_by_field_name("declarator") or [member]]
            plain = all(d.type in {"field_identifier", "identifier"} for d in declared)
            return [source.of(d) for d in declared] if plain else []
    return ["x", "y"] if kind == "float2" else []
