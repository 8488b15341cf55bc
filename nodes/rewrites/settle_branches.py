"""A branch that every launch of the kernel decides alike when it is compiled goes; the side that is taken stays.

`if constexpr (kWithBias) { ... } else { ... }` with `kernel<T, true><<<...>>>` becomes its first side, and
`kWidth == 0 ? blockDim.x : kWidth` with `kernel<0><<<...>>>` becomes `blockDim.x`. Changes nothing by itself, but other
steps must take what stands in a branch for something that some elements skip.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

from tree_sitter import Node

from nodes.rewrites import Facts
from nodes.rewrites.device_code import Code, Kernel, Launch, one_after_another, statements
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"memory", "latency", "compute", "launch"})
EXPECTED = "nothing by itself: later steps see which loads and stores every element has"
SPEEDUP = 1.0001
ORDER = 2

OPERATORS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "==": operator.eq, "!=": operator.ne, "<": operator.lt,
    ">": operator.gt, "<=": operator.le, ">=": operator.ge,
}  # fmt: skip


def rewrite(source: Source, facts: Facts) -> str | None:
    return one_after_another(source, _next, 64)  # one at a time: they nest


def _next(code: Code) -> str | None:
    for kernel in code.kernels:
        for node in code.source.walk(kernel.body, "if_statement", "conditional_expression"):
            edits = Edits(code.source)
            try:
                if _decide(edits, code, kernel, node):
                    return edits.apply()
            except Unsupported:
                continue
    return None


def _decide(edits: Edits, code: Code, kernel: Kernel, node: Node) -> bool:
    condition = node.child_by_field_name("condition")
    if condition is not None and condition.type == "condition_clause":
        condition = condition.child_by_field_name("value")
    if condition is None or not kernel.launches or not _names_template(code, condition):
        return False
    values = {_truth(value_in(code, kernel, launch, condition)) for launch in kernel.launches}
    if len(values) != 1 or None in values:
        return False
    taken = node.child_by_field_name("consequence" if True in values else "alternative")
    if node.type == "conditional_expression":
        if taken is None:
            return False
        plain = taken.type in {
            "identifier",
            "number_literal",
            "field_expression",
            "call_expression",
            "subscript_expression",
        }
        edits.replace(node, code.source.of(taken) if plain else f"({code.source.of(taken)})")
        return True
    if taken is not None and taken.type == "else_clause":
        taken = taken.named_children[-1]
    if node.parent is not None and node.parent.type == "else_clause":
        if taken is None:
            raise Unsupported("an else without anything behind it")
        edits.replace(node, code.source.of(taken))
    elif taken is None:
        _drop_line(edits, code.source, node)
    elif taken.type == "compound_statement" and not any(s.type == "declaration" for s in statements(taken)):
        inner = taken.named_children
        if not inner:
            _drop_line(edits, code.source, node)
        else:
            text = code.source.data[inner[0].start_byte : inner[-1].end_byte].decode()
            deeper, here = code.source.indent(inner[0]), code.source.indent(node)
            edits.replace(
                node, "\n".join(here + x.removeprefix(deeper) if n else x for n, x in enumerate(text.split("\n")))
            )
    else:
        edits.replace(node, code.source.of(taken))
    return True


def _drop_line(edits: Edits, source: Source, node: Node) -> None:
    start, end = source.data.rfind(b"\n", 0, node.start_byte) + 1, source.data.find(b"\n", node.end_byte) + 1
    if source.data[start : node.start_byte].strip() or source.data[node.end_byte : end].strip():
        edits.replace(node, ";")
    else:
        edits.changes.append((start, end, ""))


def _names_template(code: Code, condition: Node) -> bool:
    for identifier in code.source.walk(condition, "identifier"):
        found = code.definition(identifier)
        if found is not None and found.kind == "template":
            return True
    return condition.type in {"true", "false"}  # settle_calls leaves what a call named


def _truth(value: int | None) -> bool | None:
    return None if value is None else bool(value)


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
    if node.type == "unary_expression" and code.source.of(node.children[0]) == "!":
        inner = value_in(code, kernel, launch, node.children[-1], depth + 1)
        return None if inner is None else int(not inner)
    if node.type in {"identifier", "type_identifier"}:  # as an argument of a template, a name could be either
        return _of_name(code, kernel, launch, node, depth)
    if node.type != "binary_expression":
        return None
    sides = [node.child_by_field_name(f) for f in ("left", "right")]
    left, right = (value_in(code, kernel, launch, s, depth + 1) if s is not None else None for s in sides)
    joint = code.source.of(node.child_by_field_name("operator"))
    if joint == "&&":
        return 0 if 0 in (left, right) else None if None in (left, right) else 1
    if joint == "||":
        return 1 if left or right else None if None in (left, right) else 0
    return None if left is None or right is None or joint not in OPERATORS else int(OPERATORS[joint](left, right))


def _of_name(code: Code, kernel: Kernel, launch: Launch | None, name: Node, depth: int) -> int | None:
    found = code.definition(name)
    if found is None:
        return None
    if found.kind == "macro":
        return _number(code.source.of(found.declaration.child_by_field_name("value")).split("//")[0].strip(" ()"))
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
    default = parameters[at].child_by_field_name("default_value") if 0 <= at < len(parameters) else None
    return value_in(code, kernel, None, default) if default is not None else None
