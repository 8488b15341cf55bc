"""What is known of a launch: the numbers that expressions are in it, its blocks' width, and their barriers."""

from __future__ import annotations

import operator
from collections.abc import Callable

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of

NUMBERS: dict[str, Callable[[float, float], float]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "<": operator.lt, ">": operator.gt, "<=": operator.le,
    ">=": operator.ge, "==": operator.eq, "!=": operator.ne,
}  # fmt: skip
WARP = 32


def value_in(code: Code, kernel: Kernel, launch: Launch | None, node: Node, depth: int = 0) -> int | None:
    """The number that an expression is in one launch, None where that is only known when it runs."""
    text = code.source.of(node)
    if depth > 12:
        return None
    if node.type in {"true", "false"}:
        return int(node.type == "true")
    if node.type == "number_literal":
        return _number(text)
    if node.type == "parenthesized_expression" and node.named_child_count == 1:
        return value_in(code, kernel, launch, node.named_children[0], depth + 1)
    if node.type in {"identifier", "type_identifier"}:  # as an argument of a template, a name could be either
        return _of_name(code, kernel, launch, node, depth)
    if node.type != "binary_expression":
        return None
    sides = [field_of(node, f) for f in ("left", "right")]
    left, right = (value_in(code, kernel, launch, s, depth + 1) if s is not None else None for s in sides)
    joint = code.source.of(node, "operator")
    if joint == "&&":
        return 0 if 0 in (left, right) else None if None in (left, right) else 1
    return None if left is None or right is None or joint not in NUMBERS else int(NUMBERS[joint](left, right))


def _of_name(code: Code, kernel: Kernel, launch: Launch | None, name: Node, depth: int) -> int | None:
    found = code.definition(name)
    if found is None:
        return None
    if found.kind == "macro":
        return _number(code.source.of(found.declaration, "value").split("//")[0].strip(" ()"))
    if found.kind == "global" and found.value is not None and "const" in code.source.of(found.declaration):
        return value_in(code, kernel, None, found.value, depth + 1)
    if found.kind == "template" and launch is not None:
        return _argument(code, kernel, launch, found.name)
    return None


def _number(text: str) -> int | None:
    try:
        return int(text == "true") if text in {"true", "false"} else int(text.rstrip("uUlL"), 0)
    except ValueError:
        return None


def _argument(code: Code, kernel: Kernel, launch: Launch, name: str) -> int | None:
    """What a launch passes for a template parameter, or its default."""
    at = kernel.template_names.index(name) if name in kernel.template_names else -1
    if 0 <= at < len(launch.template_arguments):
        given = launch.template_list.named_children[at] if launch.template_list is not None else None
        if given is not None and given.type == "type_descriptor":  # `kernel<WIDTH>` reads as a type
            return _of_name(code, kernel, None, given, 0)
        return value_in(code, kernel, None, given) if given is not None else None
    parameters = kernel.template_parameters
    default = field_of(parameters[at], "default_value") if 0 <= at < len(parameters) else None
    return value_in(code, kernel, None, default) if default is not None else None


def extent_of(code: Code, kernel: Kernel, node: Node) -> int | None:
    """A number in a launch's shape; None where that is only known when it runs."""
    if node.type == "parameter_declaration":  # `dim3 block(WIDTH)` reads as a function
        node = field_of(node, "type") or node
    found = code.definition(node) if node.type in {"identifier", "type_identifier"} else None
    if found is not None and found.kind != "macro":
        settled = found.kind in {"local", "global"} and found.value is not None and not code.mutated(found)
        node = found.value if settled else node
    value = code.polynomial(node).value
    return value if value is not None else value_in(code, kernel, None, node)


def width_of(code: Code, kernel: Kernel, launch: Launch) -> int | None:
    """The threads of a launch's blocks, None where that is only known when it runs. Raises Unsupported for blocks of more than
    one dimension."""
    if launch.extents(launch.block)[1:] != ("1", "1"):
        raise Unsupported("a block of more than one dimension")
    try:
        return extent_of(code, kernel, launch.along_x(launch.block))
    except Unsupported:  # a shape that is assigned to
        return None


def is_first_thread(code: Code, condition: Node | None) -> bool:
    """`threadIdx.x == 0`, by whatever name, or `!threadIdx.x`."""
    found, zero = match(code.source, condition, "$a == $b", "!$a"), Polynomial.constant(0)
    if found is None:
        return False
    other = code.polynomial(found["b"]) if "b" in found else zero
    return {code.polynomial(found["a"]), other} == {Polynomial.symbol(THREAD), zero}
