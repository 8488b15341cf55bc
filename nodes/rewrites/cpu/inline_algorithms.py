"""Calls of the standard library that set or move elements become the loops that they are.

    std::fill(y, y + n, 0.0f);  std::fill_n(y, n, 0.0f);       for (i ...) { y[i] = 0.0f; }
    std::memset(y, 0, n * sizeof(float));                      for (i ...) { y[i] = 0; }
    std::copy(x, x + n, y);  std::memcpy(y, x, n * sizeof(float));  for (i ...) { y[i] = x[i]; }

Only over pointers and vectors whose declarations are in sight. Changes nothing by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    aliases,
    arguments,
    called,
    declared_type,
    enclosing_function,
    fields,
    identifiers,
    name_of,
    operator,
    vector_of,
)
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, one_by_one, operands

_PLAIN = frozenset({
    "float", "double", "int", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "size_t", "_Float16",
})  # fmt: skip
_ARGUMENTS = {"memset": 3, "memcpy": 3, "fill": 3, "fill_n": 3, "copy": 3, "copy_n": 3}


@dataclass(frozen=True)
class _Array:
    """Elements from `start` on, `base[start + i]`."""

    base: str
    start: str
    """"" for 0."""
    kind: str
    """Type of an element."""

    def at(self, index: str) -> str:
        return f"{self.base}[{self.start} + {index}]" if self.start else f"{self.base}[{index}]"


@rule(
    "cpu",
    expected="nothing by itself: later steps see the loops that library calls are",
    normalizes=True,
)
def rewrite(source: Source, facts: object) -> str | None:
    return one_by_one(source, _write, _calls, 64)


def _calls(source: Source) -> Iterator[tuple[Source, Node]]:
    for call in source.walk(None, "call_expression"):
        statement = call.parent
        plain = statement.type == "expression_statement" and statement.parent.type == "compound_statement"
        if plain and not call.has_error and _ARGUMENTS.get(called(source, call)) == len(arguments(call)):
            yield source, call


def _write(edits: Edits, source: Source, call: Node) -> None:
    name, (first, second, third) = called(source, call), arguments(call)
    if name in {"memset", "memcpy"}:
        array = _array(source, first)
        value = None if name == "memcpy" else second
        if value is not None and source.of(value) != "0":
            raise Unsupported("bytes of another value")
        other, count = None if value is not None else _array(source, second), _elements(source, third, array)
    else:
        array = _array(source, first)
        count = _operand(source, second) if name.endswith("_n") else _distance(source, first, second)
        value = third if name.startswith("fill") else None
        other = None
        if value is None:
            array, other = _array(source, third), array
        elif value.type not in {"identifier", "number_literal", "unary_expression"}:
            raise Unsupported("a value that may change")
    if other is not None and (other.base == array.base or (name == "memcpy" and other.kind != array.kind)):
        raise Unsupported("within one array, where the order matters, or between two types")
    statement, taken = call.parent, identifiers(source, enclosing_function(call))
    counter = next((each for each in ("i", "j", "k") if each not in taken), None) or free("i", taken)
    indent, unit = source.indent(statement), source.unit(statement)
    assigned = f"{array.at(counter)} = {source.of(value) if value is not None else other.at(counter)};"
    header = f"for (int64_t {counter} = 0; {counter} < {count}; ++{counter}) {{"
    edits.replace(statement, f"{header}\n{indent}{unit}{assigned}\n{indent}}}")


def _elements(source: Source, size: Node, array: _Array) -> str:
    """n of `n * sizeof(T)`."""
    sides = fields(size, "left", "right") if size.type == "binary_expression" and operator(source, size) == "*" else []
    sizes = [side for side in sides if side.type == "sizeof_expression"]
    if len(sizes) != 1 or array.kind not in _PLAIN:
        raise Unsupported("a size of another form")
    text = source.of(sizes[0]).removeprefix("sizeof").strip("() ").removeprefix("std::")
    if text != f"*{array.base}" and aliases(source).get(text, text) != array.kind:
        raise Unsupported("a size of another type")
    return _operand(source, next(side for side in sides if side != sizes[0]))


def _distance(source: Source, first: Node, last: Node) -> str:
    """n of `p, p + n` and of `v.begin(), v.end()`."""
    begin, end = source.of(first), source.of(last)
    if first.type == "call_expression" and end == begin.replace("begin()", "end()") != begin:
        return f"static_cast<int64_t>({begin.partition('.')[0]}.size())"
    parts = operands(source, last, "+")
    if any(source.walk(last, "call_expression", "update_expression")) or end != f"{begin} + {source.of(parts[-1])}":
        raise Unsupported("a range of another end")
    return _operand(source, parts[-1])


def _array(source: Source, node: Node) -> _Array:
    """What `p`, `p + k` and `v.begin()` point to."""
    base = (
        node.child_by_field_name("function").child_by_field_name("argument") if node.type == "call_expression" else node
    )
    while base is not None and base.type == "binary_expression" and operator(source, base) == "+":
        base = base.child_by_field_name("left")
    if base is None or base.type != "identifier" or any(source.walk(node, "update_expression")):
        raise Unsupported("not a pointer")
    name, kind = source.of(base), declared_type(source, base)
    if node.type == "call_expression":
        if not vector_of(kind) or source.of(node) not in {
            f"{name}{method}()" for method in (".begin", ".cbegin", ".data")
        }:
            raise Unsupported("not the start of a vector")
        return _Array(name, "", vector_of(kind))
    if not _is_pointer(source, base):
        raise Unsupported("not a pointer")
    return _Array(name, source.of(node)[len(name) :].removeprefix(" + "), kind)


def _is_pointer(source: Source, node: Node) -> bool:
    """Whether the name's declaration before it makes it a pointer to one element after another."""
    found = False
    for here in source.walk(enclosing_function(node), "declaration", "parameter_declaration"):
        for declarator in here.children_by_field_name("declarator") if here.start_byte < node.start_byte else ():
            inner = declarator.child_by_field_name("declarator") if declarator.type == "init_declarator" else declarator
            if source.of(name_of(inner)) == source.of(node):
                depth = sum(1 for _ in source.walk(inner, "pointer_declarator"))
                found = inner.type in {"pointer_declarator", "array_declarator"} and depth <= 1
    return found


def _operand(source: Source, node: Node) -> str:
    plain = node.type in {"identifier", "number_literal", "parenthesized_expression"}
    return source.of(node) if plain else f"({source.of(node)})"
