"""Which functions of a C++ file convert between floats and what they are stored as, told by what their bodies do."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import arguments, functions, host_code
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Source
from nodes.rewrites.syntax.tree import LOOPS, children_of, field_of

BYTES = frozenset({"int8_t", "uint8_t"})
_NUMBERS = {"0", "1", "2", "4", "16", "0x7fff", "0x7fffffff", "0x7f800000", "0x40", "64", "0x400000"}
"""Integers that conversions between float and bfloat16 are made of; anything else is some other function."""
_MOVING = frozenset({"memcpy", "__builtin_memcpy", "bit_cast", "static_cast", "isnan", "uint16_t", "uint32_t"})


def cast(source: Source, node: Node) -> tuple[str, Node]:
    """What an expression is cast to, and what is cast, of `(T)x`, `T(x)`, `static_cast<T>(x)`; a call of one argument reads alike."""
    if node.type == "cast_expression":
        return source.of(node, "type"), field_of(node, "value")
    if node.type != "call_expression" or len(given := arguments(node)) != 1:
        return "", node
    name = source.of(node, "function").removeprefix("static_cast<").removesuffix(">").strip("()")
    return name.removeprefix("std::").partition("<")[0], given[0]


class Conversions:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.bfloat16 = ""
        """The file's own type for bfloat16: a struct of 16 bits, or uint16_t."""
        parameters = source.walk(None, "type_parameter_declaration")
        self.storage = {"float", "_Float16"} | {source.of(node.named_children[0]) for node in parameters}
        """Types that a float is cast to where it is stored; template parameters stand for one of them."""
        structs = source.walk(None, "struct_specifier")
        self.sixteen_bits = {source.of(n, "name") for n in structs if "uint16_t" in source.of(n, "body")} | {"uint16_t"}
        self.widening, self.narrowing, self.storing = (
            {name for name, group in functions(source).items() if all(self._is(kind, each) for each in group)}
            for kind in ("widen", "narrow", "store")
        )
        self.floats = self.storage | ({self.bfloat16} - {""})

    def _is(self, kind: str, function: Kernel) -> bool:
        plain = host_code(self.source).plain_type
        kinds = [plain(each.element) for each in function.parameters] + [plain(self.source.of(function.node, "type"))]
        # `const T&` reads like a value, `T&` is written through like a pointer.
        pointers = [each.pointer or (kind == "store" and each.reference) for each in function.parameters]
        forms = {
            "widen": ([False], 0, ["float"]),
            "narrow": ([False], 1, ["float"]),
            "store": ([True, False], 0, ["float", "void"]),
        }
        wanted, at, rest = forms[kind]
        if pointers != wanted or kinds[:at] + kinds[at + 1 :] != rest:
            return False
        if kinds[at] in self.sixteen_bits:
            self.bfloat16 = kinds[at]
            return self._moves_bits(function.body, widens=kind == "widen")
        fits = kinds[at] in {"float", "_Float16"} or (kind == "widen" and kinds[at] in self.storage)
        return fits and self._hands_on(function)

    def _hands_on(self, function: Kernel) -> bool:
        """Whether the body only hands its float on: `return value;`, `*to = static_cast<_Float16>(value);`."""
        (first, *more) = children_of(function.body) or [None]
        found = match(self.source, first, "return $v;", "*$to = $v;", "$to = $v;")
        value = bare(found["v"]) if found is not None and not more else None
        while value is not None and value.type != "identifier":
            to, inner = cast(self.source, value)
            value = bare(inner) if to in self.storage else None
        return self.source.of(value) == function.parameters[-1].name

    def _moves_bits(self, body: Node, *, widens: bool) -> bool:
        source = self.source
        numbers = {source.of(n).rstrip("uUlL").lower() for n in source.walk(body, "number_literal")}
        signs = {source.of(n, "operator") for n in source.walk(body, "binary_expression")}
        if not {source.called(n) for n in source.walk(body, "call_expression")} <= _MOVING or source.has(body, *LOOPS):
            return False
        shifts = signs == {"<<"} if widens else ">>" in signs and not signs & {"*", "/", "-", "<<", "%"}
        return shifts and "16" in numbers and numbers <= _NUMBERS
