"""What the lanes of a pack have in common: what is worked out once for all of them, and what may be asked once."""

from __future__ import annotations

import re
from contextlib import suppress

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import inside
from nodes.rewrites.analysis.indices import LOADS
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK, Region, Stride
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.source import Unsupported
from nodes.rewrites.syntax.tree import field_of, is_integer

WIDEST = 32
"""Elements: a constant index term must be a multiple of this to keep any pack aligned."""
_TALKS = re.compile(r"atomic|sync|shfl|asm")


def shared_if(region: Region, index: Polynomial) -> list[Polynomial] | None:
    """What must be multiples of a pack's width so that an index is the same for a whole pack; None where it is not, or where
    nobody knows."""
    stride = Stride(region.symbol)
    with suppress(Unsupported):
        return stride.multiples if stride.of(index) == 0 else None
    return None


class Common:
    """What a region's elements that are one pack have in common."""

    def __init__(self, kernel: Kernel, region: Region) -> None:
        self.kernel, self.code, self.source, self.region = kernel, kernel.code, kernel.source, region
        self.multiples: list[Polynomial] = []
        """What the host checks so that indices like `i / columns` are."""
        writes = [access for access in kernel.accesses if access.writes and region.holds(access.node)]
        self.stored = {name for access in writes for name in (access.root, access.base.text)}
        self.once: list[Node] = []
        """Declarations that are made once for a pack; where it is of a place that moves with the element, lanes have their own."""
        assigned = (self.code.definition(target) for s in region.body for target in self.code.assigned(s))
        self.varying = {region.symbol.where, *(found.where for found in assigned if found is not None)}
        for statement in (s for s in region.body if s.type == "declaration"):
            declared = statement.children_by_field_name("declarator")
            set_once = all(d.type == "init_declarator" and d.start_byte not in self.varying for d in declared)
            if set_once and all(self._is_index(statement, d) for d in declared):
                self.varying |= {d.start_byte for d in declared if not self._is_whole(d)}
                self.once.append(statement)
            elif set_once and not self.varies(statement):
                self.once.append(statement)
            else:
                self.varying |= {d.start_byte for d in declared}

    def varies(self, node: Node) -> bool:
        """Whether something may come to something else for each lane, or must be left where it stands."""
        source = self.source
        if source.has(node, "assignment_expression", "update_expression"):
            return True
        if any(_TALKS.search(source.of(call, "function")) for call in source.walk(node, "call_expression")):
            return True
        names = list(source.walk(node, "identifier"))
        compared = {"==", "!="}  # `y != nullptr`
        read = (name for name in names if source.of(name.parent, "operator") not in compared)
        return any(source.of(n) in self.stored for n in read) or not all(self._is_known(n, node, True) for n in names)

    def check_known(self, node: Node) -> None:
        """Raises Unsupported where an address names what is not declared in front of a pack's loads."""
        if not all(self._is_known(name, node, False) for name in self.source.walk(node, "identifier")):
            raise Unsupported("an address that is not known in front of the loads")

    def _is_known(self, name: Node, within: Node, whole: bool) -> bool:
        """Whether a name means something in front of the loads, and, where that is asked, the same for a `whole` pack."""
        found = self.code.definition(name)
        if found is None or inside(found.declaration, within):
            return True
        if whole and found.where in self.varying:
            return False
        return not self.region.holds(found.declaration) or found.declaration in self.once

    def is_asked_once(self, condition: Node) -> bool:
        """Whether a condition may be asked once a pack, in front of its loads."""
        code, source = self.code, self.source
        macros = any(source.of(name) in code.macros for name in source.walk(condition, "identifier"))
        calls = any(source.called(call) not in LOADS for call in source.walk(condition, "call_expression"))
        return not (macros or calls or self.varies(condition) or self.tells_apart(condition))

    def tells_apart(self, node: Node) -> bool:
        """Whether it says there which of the threads that share the elements out it is."""
        region = self.region
        places = [self.code.polynomial(n) for n in self.source.walk(node, "identifier", "field_expression")]
        return any(region.tells_apart(p) or (region.kind == "grid" and p.depends_on(BLOCK)) for p in places)

    def multiples_of_width(self, launch: Launch, polynomial: Polynomial) -> list[tuple[str, ...]]:
        """Products, as their factors, that must be multiples of the width so that the polynomial is one. Raises Unsupported where
        the host cannot know."""
        found, element = [], self.region.symbol
        # In an order of its own: a set's would differ from one process to the next.
        for monomial, coefficient in sorted(polynomial.terms, key=lambda term: [symbol.text for symbol in term[0]]):
            if any(s == element or (s.operator == "%" and s.depends_on(element)) for s in monomial):
                continue  # the element is the first of a pack, and its stride is the pack's
            if coefficient % WIDEST == 0:
                continue
            factors = []
            for symbol in (s for s in monomial if s.node is not None and not s.depends_on(element)):
                with suppress(Unsupported):
                    text = host_text(self.kernel, launch, symbol.node)
                    factors.append(f"({text})" if symbol.node.type == "conditional_expression" else text)
            if not factors:
                raise Unsupported("an offset whose alignment the host cannot know")
            found.append(tuple(factors))
        return found

    def check_host(self, needed: list[Polynomial]) -> None:
        """Raises Unsupported where a host cannot know whether these are multiples."""
        for launch in self.kernel.launches:
            for polynomial in needed:
                self.multiples_of_width(launch, polynomial)

    def _is_whole(self, declarator: Node) -> bool:
        """Whether an index is the same for all lanes of a pack, given what the host checks."""
        needed = shared_if(self.region, self.code.polynomial(field_of(declarator, "value")))
        with suppress(Unsupported):
            if needed is not None:
                self.check_host(needed)
                self.multiples += needed
                return True
        return False

    def _is_index(self, statement: Node, declarator: Node) -> bool:
        """Integers and pointers that move by a constant with the element and come from no memory."""
        source, index = self.source, self.code.polynomial(field_of(declarator, "value"))
        try:
            Stride(self.region.symbol).of(index)
        except Unsupported:
            return False
        if {symbol.where for symbol in index.variables()} & self.varying - {self.region.symbol.where}:
            return False  # built on what the body works out
        kind, pointer = source.of(statement, "type"), field_of(declarator, "declarator").type == "pointer_declarator"
        if not (pointer or kind == "auto" or is_integer(kind)):
            return False
        if pointer and any(self.code.root_of(s) == "" for s in index.symbols):
            return False  # to a variable of each element's own
        if source.has(statement, "subscript_expression"):
            return False
        return not any(source.of(n.children[0]) == "*" for n in source.walk(statement, "pointer_expression"))
