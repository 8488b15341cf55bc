"""Floating-point numbers as CUDA's functions see them, infinities and NaN among them, and structs of them."""

from __future__ import annotations

import math
from collections.abc import Callable

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.syntax.tree import children_of, declared_name, field_of, statements

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
    return a == b or abs(a - b) <= NEAR * (1.0 + abs(a) + abs(b))


def base_of(code: Code, name: str) -> float:
    """What an exponential function multiplies its argument by, 0 for other functions. One of the file's own is
    understood where all it has is the device's instruction, `asm("ex2.approx.ftz.f32 %0, %1;" : ...)`."""
    known = code.overloads.get(name.split("::")[-1], [])
    if not known:
        return BASES.get(name, 0.0)
    if len(known) != 1:
        return 0.0
    declarator, body = field_of(known[0], "declarator"), field_of(known[0], "body")
    listed = field_of(declarator, "parameters")
    taken = [declared_name(field_of(p, "declarator") or p) for p in listed.named_children]
    lines = statements(body)
    if [s.type for s in lines] != ["declaration", "expression_statement", "return_statement"] or len(taken) != 1:
        return 0.0
    asm, declared = lines[1].named_children[0], lines[0].children_by_field_name("declarator")
    if asm.type != "gnu_asm_expression" or [d.type for d in declared] != ["identifier"]:
        return 0.0
    words = code.source.of(asm, "assembly_code").strip('"').split()
    operands = [
        [code.source.of(n, "value") for n in code.source.walk(asm, f"gnu_asm_{kind}_operand")]
        for kind in ("output", "input")
    ]
    told = [[code.source.of(declared[0])], [code.source.of(taken[0])]]
    returned = code.source.of(lines[2].named_children[0]) == told[0][0]
    plain = len(words) == 3 and words[0].startswith("ex2.approx.") and words[1:] == ["%0,", "%1;"]
    return LN2 if plain and returned and operands == told else 0.0


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
