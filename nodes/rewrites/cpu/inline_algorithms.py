"""`std::memset(y, 0, n * sizeof(float));` becomes the loop that it is, which threads can share out. Changes nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    aliases,
    arguments,
    called,
    declared_type,
    enclosing_function,
    fields,
    host_code,
    identifiers,
    operator,
)
from nodes.rewrites.registry import rule
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, one_by_one
from nodes.rewrites.syntax.tree import field_of

_PLAIN = frozenset({
    "float", "double", "int", "int8_t", "uint8_t", "int16_t", "uint16_t", "int32_t", "uint32_t", "int64_t", "size_t", "_Float16",
})  # fmt: skip


@rule("cpu", expected="nothing by itself: later steps see the loop that a library call is", normalizes=True)
def rewrite(source: Source, facts: object) -> str | None:
    return one_by_one(source, _write, _calls, 64)


def _calls(source: Source) -> Iterator[tuple[Source, Node]]:
    for call in source.walk(None, "call_expression"):
        statement = call.parent
        plain = statement.type == "expression_statement" and statement.parent.type == "compound_statement"
        if plain and not call.has_error and called(source, call) == "memset" and len(arguments(call)) == 3:
            yield source, call


def _write(edits: Edits, source: Source, call: Node) -> None:
    array, value, size = arguments(call)
    if source.of(value) != "0" or array.type != "identifier" or not _is_pointer(source, array):
        raise Unsupported("bytes of another value, or not the start of an array")
    count, statement, taken = _elements(source, size, array), call.parent, identifiers(source, enclosing_function(call))
    counter = next((each for each in "ijk" if each not in taken), None) or free("i", taken)
    header = f"for (int64_t {counter} = 0; {counter} < {count}; ++{counter}) {{"
    edits.write(statement, [header, [f"{source.of(array)}[{counter}] = 0;"], "}"])


def _elements(source: Source, size: Node, array: Node) -> str:
    """n of `n * sizeof(T)`."""
    sides = fields(size, "left", "right") if size.type == "binary_expression" and operator(source, size) == "*" else []
    sizes = [side for side in sides if side.type == "sizeof_expression"]
    kind = declared_type(source, array)
    if len(sizes) != 1 or kind not in _PLAIN:
        raise Unsupported("a size of another form")
    text = source.of(sizes[0]).removeprefix("sizeof").strip("() ").removeprefix("std::")
    if text != f"*{source.of(array)}" and aliases(source).get(text, text) != kind:
        raise Unsupported("a size of another type")
    count = next(side for side in sides if side != sizes[0])
    plain = count.type in {"identifier", "number_literal", "parenthesized_expression"}
    return source.of(count) if plain else f"({source.of(count)})"


def _is_pointer(source: Source, node: Node) -> bool:
    """Whether the name's declaration before it makes it a pointer to one element after another."""
    found = host_code(source).definition(node)
    form = found.form if found is not None else None
    arrays = form is not None and form.type in {"pointer_declarator", "array_declarator"}
    return arrays and field_of(form, "declarator").type == "identifier"
