"""Which functions of a C++ file convert between floats and what they are stored as, told by what their bodies do."""

from __future__ import annotations

from nodes.rewrites.analysis.host_source import Function, aliases, called, functions, identifiers, operator
from nodes.rewrites.syntax.source import Source
from nodes.rewrites.syntax.tree import children_of

BYTES = frozenset({"int8_t", "uint8_t"})
# Integers that conversions between float and bfloat16 are made of; anything else is some other function.
_WIDENING = {"0", "1", "2", "4", "16"}
_NARROWING = {
    "0", "1", "2", "4", "16", "0x7fff", "0x8000", "0xffff", "0x7fffffff", "0x7f800000", "0x007fffff", "0x7fc0", "0x40",
    "0x0040", "64", "0x400000", "0x00400000", "0x10000",
}  # fmt: skip
_MOVING = frozenset({
    "memcpy", "__builtin_memcpy", "bit_cast", "static_cast", "reinterpret_cast", "isnan", "uint16_t", "uint32_t",
})  # fmt: skip
_HANDING_ON = frozenset({
    "return_statement", "expression_statement", "assignment_expression", "pointer_expression", "identifier",
    "call_expression", "template_function", "template_argument_list", "type_descriptor", "primitive_type",
    "type_identifier", "argument_list", "cast_expression", "parenthesized_expression", "subscript_expression",
    "subscript_argument_list", "number_literal", "type_qualifier",
})  # fmt: skip


class Conversions:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.bfloat16 = ""
        """The file's own type for bfloat16: a struct of 16 bits, or uint16_t."""
        self.storage = {"float", "_Float16", *BYTES} | {
            source.of(node.named_children[0]) for node in source.walk(None, "type_parameter_declaration")
        }
        """Types that a float is cast to where it is stored; template parameters stand for one of them."""
        self.sixteen_bits = {"uint16_t", "std::uint16_t", "unsigned short"}
        for node in source.walk(None, "struct_specifier"):
            typedef = node.parent.type == "type_definition"  # `typedef struct { uint16_t bits; } bf16;`
            name = node.parent.child_by_field_name("declarator") if typedef else node.child_by_field_name("name")
            if "uint16_t" in source.of(node, "body"):
                self.sixteen_bits.add(source.of(name))
        groups: dict[str, list[Function]] = {}
        for name, group in functions(source).items():
            groups.setdefault(name.partition("<")[0].strip(), []).extend(group)
        self.widening, self.narrowing, self.storing = (
            {name for name, group in groups.items() if all(self._is(kind, function) for function in group)}
            for kind in ("widen", "narrow", "store")
        )

    def _is(self, kind: str, function: Function) -> bool:
        known = aliases(self.source)
        names = [each.name for each in function.parameters]
        kinds = [known.get(each.type, each.type) for each in function.parameters]
        returns = self.source.of(function.node, "type")
        returns = known.get(returns, returns)
        # `const T&` reads like a value, `T&` is written through like a pointer.
        pointers = [each.pointer and not (kind != "store" and each.reference) for each in function.parameters]
        if pointers != ([True, False] if kind == "store" else [False]):
            return False
        stored = returns if kind == "narrow" else kinds[0]
        if {"widen": returns, "narrow": kinds[0], "store": kinds[-1]}[kind] != "float" or (
            kind == "store" and returns != "void"
        ):
            return False
        if stored in self.sixteen_bits:
            self.bfloat16 = stored
            return self._moves_bits(function, widens=kind == "widen")
        fits = stored in {"float", "_Float16"} or (kind == "widen" and stored in self.storage)
        return fits and self._hands_on(function, names[-1])

    def _hands_on(self, function: Function, name: str) -> bool:
        """Whether the body only hands its float on: `return value;`, `*to = static_cast<_Float16>(value);`."""
        source, statements = self.source, children_of(function.body)
        if len(statements) != 1 or statements[0].type not in {"return_statement", "expression_statement"}:
            return False
        nodes = [node for node in source.walk(statements[0]) if node.is_named]
        made = [source.of(node, "function") for node in nodes if node.type == "call_expression"]
        plain = all(text.startswith(("static_cast<", "float", "_Float16")) for text in made)
        return plain and {node.type for node in nodes} <= _HANDING_ON and name in identifiers(source, statements[0])

    def _moves_bits(self, function: Function, *, widens: bool) -> bool:
        source, body = self.source, function.body
        numbers = {source.of(n).rstrip("uUlL").lower() for n in source.walk(body, "number_literal")}
        shifts = {operator(source, n) for n in source.walk(body, "binary_expression")}
        made = {called(source, n) for n in source.walk(body, "call_expression")}
        if not made <= _MOVING or any(source.walk(body, "for_statement", "while_statement", "do_statement")):
            return False
        if widens:
            return "16" in numbers and numbers <= _WIDENING and shifts == {"<<"}
        return "16" in numbers and numbers <= _NARROWING and ">>" in shifts and not shifts & {"*", "/", "-", "<<", "%"}
