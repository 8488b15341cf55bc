"""Float arithmetic on the special-function unit: `__expf` for `expf`, `__fdividef` for `/`, `rsqrtf`, no doubles.

The intrinsics are right to about 2 units in the last place of a float in ordinary ranges, far below a 16-bit output's
rounding; where that is not enough the checks say so and the step is dropped. Only what is known to be float is touched, and no
logarithm: `__logf` loses its relative accuracy near 1, and a kernel takes few of them.
"""

from __future__ import annotations

import math
import re

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.indices import COORDINATES
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, repeated
from nodes.rewrites.syntax.tree import children_of, field_of, is_integer

_FLOAT_CALLS = {
    "expf", "__expf", "logf", "__logf", "sqrtf", "rsqrtf", "fmaxf", "fminf", "fabsf", "tanhf", "erff", "powf", "fmaf", "exp2f",
    "__half2float", "__bfloat162float", "__fdividef", "__frcp_rn", "__int2float_rn", "floorf", "rintf", "roundf", "ceilf",
    "sinf", "cosf", "__sinf", "__cosf", "log1pf", "log2f", "__fmul_rn", "__fadd_rn", "__powf", "expm1f",
}  # fmt: skip
_SAME_TYPE_CALLS = {
    "exp", "log", "sqrt", "rsqrt", "tanh", "fabs", "abs", "max", "min", "fmax", "fmin", "std::exp", "std::log",
}  # fmt: skip
_VECTORS = {"float2", "float3", "float4"}
_ARITHMETIC, _COMPARISONS = {"+", "-", "*", "/"}, {"<", ">", "<=", ">=", "==", "!="}
_AROUND = {"parenthesized_expression", "unary_expression"}
_SIZES = {"sizeof_expression", "alignof_expression", "offsetof_expression"}
_INTEGER = r"(0[xX][0-9a-fA-F]+|\d+)[uUlL]*"


@rule(
    "cuda",
    expected="an exponential in 2 instead of 8 instructions, a division in 2 instead of 10 and a branch",
    speedup=1.05,
    helps={"memory", "latency", "compute"},
    after=("restrict_pointers",),
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
        for node in source.walk(function, "binary_expression", "call_expression", "number_literal"):
            with edits.attempt():
                new = _faster(code, node) if node.start_byte >= end else None
                if new is not None:
                    edits.replace(node, new)
                    end = node.end_byte
    return edits.apply() if edits.changes else None


def _faster(code: Code, node: Node) -> str | None:
    source, text = code.source, code.source.of
    if node.type == "number_literal":
        return f"{text(node)}f" if _kind_of(code, node) == "double" and _in_float_company(code, node) else None
    exponential = match(source, node, "expf($x)", "exp($x)", "std::exp($x)")
    if exponential is not None and text(node, "function") not in code.functions:
        single = exponential.pattern == "expf($x)" or kind(code, exponential["x"]) == "float"
        return f"__expf({text(exponential['x'])})" if single else None
    division = match(source, node, "$a / $b")
    if division is None or kind(code, node) != "float" or _is_made_whole(code, node):
        return None
    left, right = text(division["a"]), text(division["b"])
    if re.fullmatch(r"[\d.]+[fF]?", right) and math.frexp(float(right.rstrip("fF")))[0] == 0.5:
        return None  # by a power of two: the compiler multiplies
    root = match(source, division["b"], "sqrtf($x)", "sqrt($x)", "std::sqrt($x)")
    if root is not None and re.fullmatch(r"1(\.0*)?f?", left):
        return f"rsqrtf({text(root['x'])})"
    return f"__fdividef({left}, {right})"


def _is_made_whole(code: Code, division: Node) -> bool:
    """Whether its quotient becomes an integer by cutting off: one in the last place below a whole quotient, it is another index."""
    source, above = code.source, division.parent
    while above is not None and not above.type.endswith(("_statement", "declaration")):
        called = source.of(above, "function")
        cast = source.of(above, "type") or called.removeprefix("static_cast<").removesuffix(">")
        if (
            re.fullmatch(r"(std::)?(floor|ceil|trunc)f?|__float2u?(int|ll)_r[duz]", called)
            or _named(code, cast) == "int"
        ):
            return True
        if above.type == "init_declarator" and _named(code, source.of(above.parent, "type")) == "int":
            return True
        above = above.parent
    return False


def _in_float_company(code: Code, literal: Node) -> bool:
    """Whether a double constant is computed with floats and constants alone, compared with such, or initialises a float."""
    top = literal
    while top.parent.type in _AROUND or code.source.of(top.parent, "operator") in _ARITHMETIC:
        top = top.parent
    compared = code.source.of(top.parent, "operator") in _COMPARISONS
    leaves = _leaves(code, *([field_of(top.parent, side) for side in ("left", "right")] if compared else [top]))
    kinds = {_kind_of(code, leaf) for leaf in leaves if leaf.type != "number_literal"}
    begins = top.parent.type == "init_declarator" and code.source.of(top.parent.parent, "type") == "float"
    return kinds == {"float"} or (begins and not kinds)


def kind(code: Code, node: Node) -> str | None:
    """`float`, `double`, `int`, or None where the type is not known."""
    kinds = {_kind_of(code, leaf) for leaf in _leaves(code, node)}
    return None if None in kinds else next(found for found in ("double", "float", "int") if found in kinds)


def _leaves(code: Code, *nodes: Node) -> list[Node]:
    """What an expression is computed from, in its own type."""
    source, found, stack = code.source, list[Node](), list(nodes)
    while stack:
        node = stack.pop()
        if node.type in _AROUND:
            stack.append(node.named_children[-1])
        elif node.type == "conditional_expression":
            stack += [field_of(node, side) for side in ("consequence", "alternative")]
        elif node.type == "binary_expression" and source.of(node, "operator") in _ARITHMETIC:
            stack += [field_of(node, side) for side in ("left", "right")]
        elif source.of(node, "function") in _SAME_TYPE_CALLS:
            stack += children_of(node, "arguments")
        else:
            found.append(node)
    return found


def _kind_of(code: Code, leaf: Node) -> str | None:
    source, text, place = code.source, code.source.of(leaf), code.place_of(leaf)
    if leaf.type == "number_literal":
        return "int" if re.fullmatch(_INTEGER, text) else "float" if text[-1] in "fF" else "double"
    if place is not None:
        base = code.pointer_base(place)
        return _named(code, code.element_of(base)) if base is not None else None
    if leaf.type in _SIZES:  # whose type is what they are the size of
        return "int"
    if leaf.type == "identifier":
        return _kind_of_name(code, leaf)
    if leaf.type == "field_expression":
        found = code.variable(field_of(leaf, "argument"))
        vector = found is not None and source.of(found.declaration, "type") in _VECTORS
        return "int" if text.split(".")[0] in COORDINATES else "float" if vector else None
    called = source.of(leaf, "function")
    if called in _FLOAT_CALLS:
        return "float"
    function = code.functions.get(called.split("<")[0])
    cast = source.of(leaf, "type") or called.removeprefix("static_cast<").removesuffix(">")
    return _named(code, cast if function is None else source.of(function, "type"))


def _kind_of_name(code: Code, name: Node) -> str | None:
    found = code.definition(name)
    if found is None or found.declarator is None:
        number = found is not None and found.kind == "template" and "int" in code.source.of(found.declaration)
        return "int" if number else None
    if found.form.type in {"pointer_declarator", "array_declarator"}:
        return None
    known = _named(code, code.source.of(found.declaration, "type"))
    return kind(code, found.value) if known is None and found.value is not None else known


def _named(code: Code, name: str) -> str | None:
    name = code.plain_type(name.removeprefix("const ").strip())
    if name in {"float", "double"}:
        return name
    return "int" if is_integer(name) or name.split()[-1:] in (["char"], ["bool"]) else None
