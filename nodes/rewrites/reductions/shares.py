"""What threads bring to a sum: where that is not nothing for a thread without elements, a sum is another one with more threads."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import is_first_thread
from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import THREAD, thread_loops
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Unsupported, operands
from nodes.rewrites.syntax.tree import children_of, conditions_of, field_of, is_zero

_CASTS = {"static_cast", "float", "double", "T"}


def check_block_shares(code: Code, kernel: Kernel) -> None:
    """Of what `block_sum` adds up. Raises Unsupported where a thread without elements may add something."""
    for call in kernel.calls("block_sum"):
        check_share(code, kernel, field_of(call, "arguments").named_children[0], call)


def check_share(code: Code, kernel: Kernel, value: Node, reduction: Node) -> None:
    """Of one value that a reduction adds up. Raises Unsupported where a thread without elements may add something."""
    if not _is_nothing(code, kernel, value, reduction, 0):
        raise Unsupported("a thread without elements adds to the sum")


def _is_nothing(code: Code, kernel: Kernel, value: Node, reduction: Node, depth: int) -> bool:
    """Whether a value is 0 in a thread that had no element in front of the reduction."""
    source = code.source
    if depth > 8:
        return False
    if value.type == "number_literal":
        return is_zero(source.of(value))
    if value.type in {"parenthesized_expression", "cast_expression"}:
        return _is_nothing(code, kernel, value.named_children[-1], reduction, depth + 1)
    if value.type == "call_expression":
        inner = children_of(value, "arguments")
        cast = source.called(value) in _CASTS | set(kernel.template_names) and len(inner) == 1
        return cast and _is_nothing(code, kernel, inner[0], reduction, depth + 1)
    if value.type == "binary_expression":
        sides = [field_of(value, f) for f in ("left", "right")]
        sign = source.of(value, "operator")
        nothing = [_is_nothing(code, kernel, side, reduction, depth + 1) for side in sides]
        return {"*": any(nothing), "/": nothing[0], "+": all(nothing), "-": all(nothing)}.get(sign, False)
    return value.type == "identifier" and _begins_with_nothing(code, kernel, value, reduction, depth)


def _begins_with_nothing(code: Code, kernel: Kernel, name: Node, reduction: Node, depth: int) -> bool:
    """Whether a variable was last set to nothing, and then changed by elements, by factors and by the first thread alone."""
    found = code.definition(name)
    if found is None or found.kind != "local":
        return False
    nothing = found.value is None or _is_nothing(code, kernel, found.value, reduction, depth + 1)
    if _is_of_element(code, kernel, found.declaration):
        return False
    for target in code.set_at(found, kernel.body):
        owner = target.parent
        if target.start_byte >= reduction.start_byte or owner is None:
            continue
        if _is_of_element(code, kernel, target) or is_leaders(code, target):
            continue
        sign = code.source.set_by(target)
        if sign == "=" and not inside(reduction, owner):
            nothing = _is_nothing(code, kernel, field_of(owner, "right"), owner, depth + 1)
        elif sign not in {"*=", "/=", "="}:
            nothing = False
    return nothing


def _is_of_element(code: Code, kernel: Kernel, node: Node) -> bool:
    """Whether a thread only gets there for an element: in a loop over its elements, or behind `if (pack < packs)`."""
    if any(inside(node, loop.body) for loop in thread_loops(kernel)):
        return True
    asked = (match(code.source, condition, "$place < $bound") for condition in conditions_of(node, kernel.body))
    return any(found is not None and code.polynomial(found["place"]).depends_on(THREAD) for found in asked)


def is_leaders(code: Code, node: Node) -> bool:
    """Whether only the block's first thread gets there: behind `threadIdx.x == 0`, or `!threadIdx.x`, perhaps with more to it."""
    return any(
        is_first_thread(code, part)
        for condition in conditions_of(node)
        for part in operands(code.source, condition, "&&")
    )
