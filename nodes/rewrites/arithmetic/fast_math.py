"""Float arithmetic on the special-function unit: `__expf` for `expf`, `__fdividef` for `/`, `rsqrtf`, no doubles.

The intrinsics are right to about 2 units in the last place of a float in ordinary ranges, far below a 16-bit output's
rounding; where that is not enough the checks say so and the step is dropped. Only what is known to be float is touched.
"""

from __future__ import annotations

import math
import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import bare
from nodes.rewrites.syntax.source import Edits, Source, repeated
from nodes.rewrites.syntax.tree import children_of, field_of, is_integer

_FAST = {"expf": "__expf", "exp": "__expf", "std::exp": "__expf"}
"""Not the logarithm: `__logf` loses its relative accuracy near 1, and a kernel takes few of them."""
_FLOAT_CALLS = {
    "expf", "__expf", "logf", "__logf", "sqrtf", "rsqrtf", "fmaxf", "fminf", "fabsf", "tanhf", "erff", "powf", "fmaf", "exp2f",
    "__half2float", "__bfloat162float", "__fdividef", "__frcp_rn", "__int2float_rn", "floorf", "rintf", "roundf", "ceilf",
    "sinf", "cosf", "__sinf", "__cosf", "log1pf", "log2f", "__fmul_rn", "__fadd_rn", "__powf", "expm1f",
}  # fmt: skip
_SAME_TYPE_CALLS = {
    "exp", "log", "sqrt", "rsqrt", "tanh", "fabs", "abs", "max", "min", "fmax", "fmin", "std::exp", "std::log",
}  # fmt: skip
_VECTORS = {"float2", "float3", "float4"}


@rule(
    "cuda",
    expected="an exponential in 2 instead of 8 instructions, a division in 2 instead of 10 and a branch",
    speedup=1.05,
    helps={"memory", "latency", "compute"},
    after=("redundant_broadcast",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    # A replacement may sit inside another (an exponential in a divisor), so the outermost first.
    return repeated(source, _faster_once, most=200)


def _faster_once(source: Source) -> str | None:
    """Every change that lies in no other one."""
    code, edits, end = code_of(source), Edits(source), 0
    for function in source.walk(None, "function_definition"):
        if not any(c.type in {"__global__", "__device__"} for c in function.children) or function.has_error:
            continue
        for node in source.walk(
            field_of(function, "body") or function, "binary_expression", "call_expression", "number_literal"
        ):
            with edits.attempt():
                new = _faster(code, node) if node.start_byte >= end else None
                if new is not None:
                    edits.replace(node, new)
                    end = node.end_byte
    return edits.apply() if edits.changes else None


def _faster(code: Code, node: Node) -> str | None:
    source = code.source
    if node.type == "number_literal":
        parent = node.parent
        if _literal(source.of(node)) == "double" and parent is not None and _in_float_company(code, node):
            return source.of(node) + "f"
        return None
    if node.type == "call_expression":
        name = source.of(node, "function")
        inner = children_of(node, "arguments")
        single = name == "expf" or (name in _FAST and len(inner) == 1 and kind(code, inner[0]) == "float")
        if single and name not in code.functions:
            return f"{_FAST[name]}({source.of(inner[0])})"
        return None
    if source.of(node, "operator") != "/" or kind(code, node) != "float":
        return None
    left, right = field_of(node, "left"), field_of(node, "right")
    if re.fullmatch(r"[\d.]+[fF]?", source.of(right)) and math.frexp(float(source.of(right).rstrip("fF")))[0] == 0.5:
        return None  # by a power of two: the compiler multiplies
    right_text, left_text = source.of(bare(right)), source.of(bare(left))
    if re.fullmatch(r"1(\.0*)?f?", left_text) and bare(right).type == "call_expression":
        call = bare(right)
        if source.of(call, "function") in {"sqrtf", "sqrt", "std::sqrt"}:
            return "rsqrtf" + source.of(call, "arguments")
    return f"__fdividef({left_text}, {right_text})"


def _literal(text: str) -> str:
    if re.fullmatch(r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*", text):
        return "int"
    return "float" if text[-1] in "fF" else "double"


def _in_float_company(code: Code, literal: Node) -> bool:
    """Whether a double constant stands in float arithmetic or initialises a float."""
    here = literal
    while here.parent is not None:
        parent = here.parent
        if parent.type == "binary_expression":
            other = field_of(parent, "left" if field_of(parent, "right") == here else "right")
            found = kind(code, other) if other is not None else None
            if found == "float":
                return True
            if found not in {"double", "int"} or (other is not None and not _constant(code, other)):
                return False
        elif parent.type == "init_declarator":
            return code.source.of(parent.parent, "type") == "float" if parent.parent else False
        elif parent.type not in {"parenthesized_expression", "unary_expression"}:
            return False
        here = parent
    return False


def _constant(code: Code, node: Node) -> bool:
    return not code.source.has(node, "identifier", "field_expression")


def kind(code: Code, node: Node | None, depth: int = 0) -> str | None:
    """`float`, `double`, `int`, or None where the type is not known."""
    if node is None or depth > 12:
        return None
    source, text = code.source, code.source.of(node)
    match node.type:
        case "number_literal":
            return _literal(text)
        case "parenthesized_expression" | "unary_expression":
            return kind(code, node.named_children[-1], depth + 1)
        case "identifier":
            return _kind_of_name(code, node, depth)
        case "subscript_expression":
            return _kind_of_elements(code, field_of(node, "argument"))
        case "field_expression":
            found = code.variable(field_of(node, "argument"))
            if text.split(".")[0] in {"threadIdx", "blockIdx", "blockDim", "gridDim"}:
                return "int"
            return "float" if found is not None and source.of(found.declaration, "type") in _VECTORS else None
        case "cast_expression":
            return _named(code, source.of(node, "type"))
        case "conditional_expression":
            return _joined(*(kind(code, field_of(node, f), depth + 1) for f in ("consequence", "alternative")))
        case "binary_expression" if source.of(node, "operator") in {"+", "-", "*", "/"}:
            return _joined(*(kind(code, field_of(node, f), depth + 1) for f in ("left", "right")))
        case "call_expression":
            return _kind_of_call(code, node, depth)
    return None


def _kind_of_name(code: Code, node: Node, depth: int) -> str | None:
    source = code.source
    found = code.definition(node)
    if found is None or found.kind in {"template", "macro"} or found.declarator is None:
        number = found is not None and found.kind == "template" and "int" in source.of(found.declaration)
        return "int" if number else None
    if found.form.type in {"pointer_declarator", "array_declarator"}:
        return None
    return _named(code, source.of(found.declaration, "type")) or kind(code, found.value, depth + 1)


def _kind_of_call(code: Code, node: Node, depth: int) -> str | None:
    source = code.source
    name = source.of(node, "function")
    if name in _FLOAT_CALLS or name in {"static_cast<float>", "float"}:
        return "float"
    if name.startswith("static_cast<"):
        return _named(code, name[12:-1].strip())
    inner = children_of(node, "arguments")
    if name in _SAME_TYPE_CALLS and inner:
        return _joined(*(kind(code, argument, depth + 1) for argument in inner))
    if name == "__ldg" and inner:
        return _kind_of_elements(code, inner[0])
    function = code.functions.get(name.split("<")[0])
    return _named(code, source.of(function, "type")) if function is not None else None


def _kind_of_elements(code: Code, pointer: Node | None) -> str | None:
    base = code.pointer_base(code.polynomial(pointer)) if pointer is not None else None
    return _named(code, code.element_of(base)) if base is not None else None


def _named(code: Code, name: str) -> str | None:
    name = code.plain_type(name.removeprefix("const ").strip())
    if name in {"float", "double"}:
        return name
    return "int" if is_integer(name) or name.split()[-1:] in (["char"], ["bool"]) else None


def _joined(*kinds: str | None) -> str | None:
    """The common type."""
    return None if None in kinds else next(found for found in ("double", "float", "int") if found in kinds)
