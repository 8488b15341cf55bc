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
ONE_MEANING = frozenset({"expf", "__expf", "exp2f"})
"""Exponentials that are of floats alone, so that their names can be handed on."""
FUNCTIONS: dict[str, Callable[..., float]] = {
    "isinf": lambda v: int(math.isinf(v)), "isnan": lambda v: int(math.isnan(v)), "isfinite": lambda v: int(math.isfinite(v)),
    "fabsf": abs, "fmaf": lambda a, b, c: a * b + c, "__fmaf_rn": lambda a, b, c: a * b + c,
    "__fmul_rn": lambda a, b: a * b, "__fadd_rn": lambda a, b: a + b, "__fsub_rn": lambda a, b: a - b,
}  # fmt: skip
EXTREMES = {
    **dict.fromkeys(("fmaxf", "max", "fmax", "std::max", "__hmax"), "max"),
    **dict.fromkeys(("fminf", "min", "fmin", "std::min", "__hmin"), "min"),
}
Values = list[object]


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
