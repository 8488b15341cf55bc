"""Expressions of a source as polynomials of what it does not compute itself, and the pointers that they count from."""

from __future__ import annotations

import re

from tree_sitter import Node

from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.match import bare
from nodes.rewrites.syntax.source import Source
from nodes.rewrites.syntax.tree import children_of, field_of, is_integer, same

COORDINATES = ("threadIdx", "blockIdx", "blockDim", "gridDim")
LOADS = {"__ldg", "__ldcs", "__ldcg", "__ldca", "__ldlu", "__ldcv"}
_SKIPPED_CALLS = ("static_cast", "int", "int64_t", "size_t", "unsigned", "long", "uint32_t", "int32_t", "uint64_t")


class Indices:
    """What a source's indices and pointers come to. Names are resolved by Code."""

    def polynomial(self, node: Node, depth: int = 0) -> Polynomial:
        """The expression as a polynomial; what is not + - * of integers or pointers becomes an opaque symbol."""
        source = self.source
        kind = node.type
        if kind == "parenthesized_expression" and node.named_child_count == 1:
            return self.polynomial(node.named_children[0], depth)
        if kind == "number_literal":
            try:
                return Polynomial.constant(int(source.of(node).rstrip("uUlL").replace("'", ""), 0))
            except ValueError:
                return self._opaque(node, depth)
        if kind == "cast_expression" and (value := field_of(node, "value")) is not None:
            if "*" in source.of(node, "type"):
                return self._opaque(node, depth)
            return self.polynomial(value, depth)
        if kind == "call_expression":
            function, inner = source.of(node, "function"), children_of(node, "arguments")
            if function.split("<")[0] in _SKIPPED_CALLS and len(inner) == 1 and "*" not in function:
                return self.polynomial(inner[0], depth)
            return self._opaque(node, depth)
        if kind == "unary_expression" and source.of(node.children[0]) in "+-":
            argument = self.polynomial(node.children[-1], depth)
            return -argument if source.of(node.children[0]) == "-" else argument
        if kind == "pointer_expression" and source.of(node.children[0]) == "&":
            place = self.place_of(bare(field_of(node, "argument")), depth)
            if place is not None:
                return place
        if kind == "binary_expression":
            return self._combined(node, depth)
        if kind == "field_expression" and source.of(node).split(".")[0] in COORDINATES:
            return Polynomial.symbol(Symbol(source.of(node), node=node))
        if kind == "identifier":
            return self._variable(node, depth)
        return self._opaque(node, depth)

    def _combined(self, node: Node, depth: int) -> Polynomial:
        """`a + b` and the like; shifts and masks by constants are products, quotients and remainders."""
        operator = self.source.of(node, "operator")
        if operator not in {"+", "-", "*", "/", "%", "<<", ">>", "&"}:
            return self._opaque(node, depth)
        a, b = (self.polynomial(field_of(node, side), depth) for side in ("left", "right"))
        if operator in {"<<", ">>"} and b.value is not None and 0 <= b.value < 31:
            operator, b = "*" if operator == "<<" else "/", Polynomial.constant(1 << b.value)
        if operator == "&" and b.value is not None and b.value > 0 and (b.value & (b.value + 1)) == 0:
            operator, b = "%", Polynomial.constant(b.value + 1)
        if operator in {"/", "%"}:
            return self.divided(node, operator, a, b)
        if operator not in {"+", "-", "*"}:
            return self._opaque(node, depth)
        return a + b if operator == "+" else a - b if operator == "-" else a * b

    def divided(self, node: Node | None, operator: str, a: Polynomial, b: Polynomial) -> Polynomial:
        """`a / b`, `a % b`, or another value that is made of two and of which no more is known."""
        whole = a.over(b) if operator in {"/", "%"} else None  # nothing is rounded
        if whole is not None:
            return whole if operator == "/" else Polynomial()
        parts = frozenset(a.symbols | b.symbols)
        text = f"({_canonical(a)}) {operator} ({_canonical(b)})"
        return Polynomial.symbol(Symbol(text, parts=parts, operands=(a, b), operator=operator, node=node))

    def _variable(self, node: Node, depth: int) -> Polynomial:
        found = self.definition(node)
        name = self.source.of(node)
        if found is None:
            return Polynomial.symbol(Symbol(name, node=node))
        settled = found.kind in {"local", "global"} and found.value is not None and not self.mutated(found)
        settled = settled and found.where not in self.pinned
        if settled and depth < 24 and found.value is not None and found.declarator is not None:
            inner = field_of(found.declarator, "declarator")
            array = inner is not None and inner.type in {"array_declarator", "reference_declarator"}
            if not array and found.value.type not in {"initializer_list", "argument_list"}:
                kind = self.source.of(found.declaration, "type")
                pointer = inner is not None and inner.type == "pointer_declarator"
                if pointer or kind == "auto" or kind in self.integers or is_integer(kind):
                    return self.polynomial(found.value, depth + 1)
        return Polynomial.symbol(Symbol(name, found.where, node=node))

    def _opaque(self, node: Node, depth: int) -> Polynomial:
        parts: set[Symbol] = set()
        for identifier in self.source.walk(node, "identifier", "field_expression"):
            if identifier.type == "field_expression":
                if self.source.of(identifier).split(".")[0] in COORDINATES:
                    parts.add(Symbol(self.source.of(identifier)))
                continue
            if self.source.of(identifier) in COORDINATES:
                continue
            if identifier.parent is not None and same(field_of(identifier.parent, "function"), identifier):
                continue
            parts |= self._variable(identifier, depth + 1).symbols if depth < 24 else set()
        text = " ".join(self.source.of(node).split())
        # Two places may spell different variables alike: the definitions are part of the name.
        marks = ",".join(sorted(f"{p.text}@{p.where}" for p in parts))
        named, address = frozenset(parts) or frozenset({Symbol(text)}), self.place_of(node, depth + 1)
        return Polynomial.symbol(Symbol(f"{text} [{marks}]", parts=named, node=node, address=address))

    def place_of(self, node: Node, depth: int = 0) -> Polynomial | None:
        """The address of `p[i]`, `*p` or `__ldg(&p[i])`, None for anything else."""
        pointer, indices = field_of(node, "argument"), children_of(node, "indices")
        if node.type == "call_expression" and self.source.of(node, "function") in LOADS:
            return self.polynomial(children_of(node, "arguments")[0], depth)
        if node.type == "pointer_expression" and self.source.of(node.children[0]) == "*":
            return self.polynomial(pointer, depth)
        if node.type != "subscript_expression" or len(indices) != 1:
            return None
        return self.polynomial(pointer, depth) + self.polynomial(indices[0], depth)

    def pointer_base(self, pointer: Polynomial) -> Symbol | None:
        """The one pointer in `base + offset`, None where there is none (an array of a struct, a local)."""
        bases = [m[0] for m, c in pointer.terms if len(m) == 1 and c == 1 and self.element_of(m[0])]
        return bases[0] if len(bases) == 1 else None

    def element_of(self, symbol: Symbol) -> str:
        """The type that a pointer or array symbol points at, "" for anything else."""
        if symbol.node is None:
            return ""
        if symbol.node.type == "call_expression":
            text = self.source.of(symbol.node, "function")
            match = re.fullmatch(r"reinterpret_cast<\s*(?:const\s+)?(.+?)\s*(?:const\s*)?\*\s*>", text, re.DOTALL)
            return match[1] if match else ""
        if symbol.node.type == "cast_expression":
            text = self.source.of(symbol.node, "type").strip()
            return text.removesuffix("*").replace("const", "").strip() if text.endswith("*") else ""
        if symbol.node.type != "identifier":
            return ""
        found = self.definition(symbol.node)
        if found is None or found.declarator is None:
            return ""
        if found.form.type not in {"pointer_declarator", "array_declarator"}:
            return ""
        return self.source.of(found.declaration, "type")


def _canonical(polynomial: Polynomial) -> str:
    return " + ".join(sorted(f"{c}*" + "*".join(f"{s.text}@{s.where}" for s in m) for m, c in polynomial.terms)) or "0"


def is_pure(source: Source, node: Node) -> bool:
    """Whether an expression may be computed more or less often than it is written."""
    changes = source.has(node, "assignment_expression", "update_expression", "lambda_expression")
    called = {source.called(call) for call in source.walk(node, "call_expression")}
    return not changes and called <= {"static_cast", "reinterpret_cast", *LOADS}
