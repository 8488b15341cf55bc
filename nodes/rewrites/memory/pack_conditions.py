"""Whether what asks for an element may be asked in front of a whole pack's loads."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.indices import COORDINATES, LOADS
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import Guard, Region, Stride
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of, same


def asked_once(
    code: Code, kernel: Kernel, region: Region, stored: set[str], guards: tuple[Guard, ...]
) -> list[tuple[Guard, list[Polynomial]]]:
    """The conditions that a whole pack shares, with what must be a multiple of its width for that."""
    found, condition = [], Condition(code, kernel, region, stored)
    for guard in guards:
        with suppress(Unsupported):
            found.append((guard, condition.checked(guard.condition)))
    return found


def shared_if(region: Region, index: Polynomial) -> list[Polynomial] | None:
    """What must be multiples of a pack's width so that an index is the same for a whole pack; None where it is not, or where
    nobody knows."""
    stride = Stride(region.symbol)
    with suppress(Unsupported):
        return stride.multiples if stride.of(index) == 0 else None
    return None


_TALKS = re.compile(
    r"atomic|sync|shfl|vote|ballot|match|any|all|reduce|clock|rand|asm|^__st|^__ld|mem|printf|assert|trap"
)


@dataclass
class Condition:
    """Whether a condition may be asked once, in front of a pack's loads."""

    code: Code
    kernel: Kernel
    region: Region
    stored: set[str]

    def checked(self, node: Node, depth: int = 0) -> list[Polynomial]:
        """What must be a multiple of the pack's width so that a pack shares the condition. Raises Unsupported where it
        cannot be asked there."""
        source, code, multiples = self.code.source, self.code, list[Polynomial]()
        whole: list[Node] = []
        for here in source.walk(node):
            if here.type == "binary_expression" and (divided := self._divided(here)) is not None:
                whole.append(here)
                multiples += divided
            if here.type in {"assignment_expression", "update_expression", "lambda_expression", "pointer_expression"}:
                raise Unsupported("a condition that does something")
            if here.type == "call_expression":
                self._check_call(here)
            elif here.type == "subscript_expression":
                base = code.pointer_base(code.polynomial(field_of(here, "argument")))
                root = code.root_of(base) if base is not None else "?"
                if root in self.stored | {"", "?"}:
                    raise Unsupported("a condition on memory that changes")
            elif here.type == "identifier" and not same(field_of(here.parent, "function"), here):
                known = source.of(here) == self.region.name and any(inside(here, part) for part in whole)
                multiples += [] if known else self._checked_name(here, depth)
        return multiples

    def _divided(self, node: Node) -> list[Polynomial] | None:
        """What must be a multiple so that `i / n` is the same for a whole pack; None for anything else."""
        if self.code.source.of(node, "operator") not in {"/", "%", ">>"}:
            return None
        index = self.code.polynomial(node)
        return self._shared_if(node) if index.depends_on(self.region.symbol) else None

    def _shared_if(self, node: Node) -> list[Polynomial] | None:
        """As `shared_if`, of an expression that looks nothing up."""
        lookups = self.code.source.has(node, "subscript_expression", "call_expression")
        return None if lookups else shared_if(self.region, self.code.polynomial(node))

    def _check_call(self, call: Node) -> None:
        function, source = field_of(call, "function"), self.code.source
        name = source.of(function).split("<")[0]
        if name in LOADS or (function is not None and function.type == "primitive_type"):
            return
        mine = name in self.code.overloads or name in self.code.macros
        if mine or function is None or function.type not in {"identifier", "template_function"} or _TALKS.search(name):
            raise Unsupported("a condition that calls a function")

    def _checked_name(self, name: Node, depth: int) -> list[Polynomial]:
        code, region, text = self.code, self.region, self.code.source.of(name)
        found = code.definition(name)
        if text == "threadIdx" or depth > 8:
            raise Unsupported("a condition on the thread")
        if found is None:
            if text in COORDINATES:
                part = code.source.of(name.parent)
                if region.kind in {"grid", "guard"} and part.endswith(f".{region.axis}"):
                    raise Unsupported("a condition on the thread")
            return []
        if found.where == region.symbol.where or found.kind == "macro":
            raise Unsupported("a condition on the element")
        if not region.holds(found.declaration):
            changed = self.kernel.changes_within(Polynomial.symbol(Symbol(text, found.where)), list(region.body))
            if changed or region.tells_apart(code.polynomial(name)):
                raise Unsupported("a condition that the body changes, or on the thread")
            return []
        if not any(same(found.declaration, s) for s in region.body) or found.value is None or code.mutated(found):
            raise Unsupported("a condition on something that is not known in front of the loads")
        multiples = self._shared_if(found.value)
        return self.checked(found.value, depth + 1) if multiples is None else multiples
