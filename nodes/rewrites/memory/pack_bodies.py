"""A region's body in three: what a pack's addresses need, what is the same for a whole pack, and what each lane does."""

from __future__ import annotations

import re
from contextlib import suppress

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code, inside
from nodes.rewrites.analysis.kernels import Access
from nodes.rewrites.analysis.regions import Region, Stride, accesses_in
from nodes.rewrites.memory.pack_conditions import shared_if
from nodes.rewrites.memory.packs import Group, Packed, lane_of
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.source import Unsupported, lifted
from nodes.rewrites.syntax.tree import field_of, is_integer, names_declared


def places_of_indices(packed: Packed, first: str) -> list[tuple[Node, str]]:
    """The element's index where the pack's first stands for all: in what is read for all of them, and in conditions."""
    return [place for node in [*packed.shared, *packed.conditions] for place in places_of_index(packed, node, first)]


def lane_accesses(packed: Packed, lane: str) -> list[tuple[Node, str]]:
    """The packs' accesses, each with the lane that stands for it."""
    return [
        (
            access.node,
            f"{'&' if access.address else ''}{group.name}.at[{_lane(lane, group.stride, lane_of(access, group.stride))}]",
        )
        for group in packed.groups
        for access in group.accesses
    ]


def address_of_pack(packed: Packed, group: Group, first: str, stored: bool = False) -> str:
    """The pack's first element, as `&base[index]`; as the kernel writes it where that is `stored`, for what it reads may go
    by another name, that of a pointer to constants."""
    begins = [a for a in group.accesses if lane_of(a, group.stride) == 0]
    access = begins[0]
    if stored and _is_through_constants(packed, access):
        access = next((a for a in begins if a.writes), access)
    sign, node = addressed(access)
    return sign + packed.kernel.source.render(node, places_of_index(packed, node, first))


def addressed(access: Access) -> tuple[str, Node]:
    """What an access's address is written with: `&` and the element, or nothing and the pointer that it goes through."""
    if not access.address and access.node.type == "call_expression":  # __ldg(pointer)
        return "", field_of(access.node, "arguments").named_children[0]
    if not access.address and access.node.type == "pointer_expression":
        return "", field_of(access.node, "argument")
    return "" if access.address else "&", access.node


def _is_through_constants(packed: Packed, access: Access) -> bool:
    """`const T* row = x + at;` with `row[i]`"""
    source = packed.kernel.source
    for name in source.walk(access.node, "identifier"):
        found = packed.kernel.code.definition(name)
        if found is not None and found.kind == "local" and found.declaration.type == "declaration":
            pointer = found.value is not None and source.has(found.declaration, "pointer_declarator")
            if pointer and source.says(found.declaration, "const"):
                return True
    return False


def places_of_index(packed: Packed, node: Node, first: str) -> list[tuple[Node, str]]:
    """The element's index below `node`, to be replaced by the pack's first."""
    region, code = packed.region, packed.kernel.code
    named = (n for n in code.source.walk(node, "identifier") if code.source.of(n) == region.name)
    return [
        (n, first) for n in named if (found := code.definition(n)) is not None and found.where == region.symbol.where
    ]


def split_body(packed: Packed, first: str, lane: str) -> tuple[list[str], list[str], list[str]]:
    """The body in three: indices that the pack's addresses need, what else is the same for a whole pack, and what is done
    for every lane."""
    region, kernel = packed.region, packed.kernel
    source, code = kernel.source, kernel.code
    packed_nodes = [access.node for group in packed.groups for access in group.accesses]
    written = {name for a in accesses_in(kernel, region) if a.writes for name in (a.root, a.base.text)}
    varying, once = {region.symbol.where}, list[Node]()
    for statement in region.body:
        targets = (code.definition(target) for target in code.assigned(statement))
        varying |= {found.where for found in targets if found is not None}
    for statement in (s for s in region.body if s.type == "declaration"):
        declared = statement.children_by_field_name("declarator")
        if _is_index(code, region, statement, declared, varying):
            varying |= {d.start_byte for d in declared if not _is_whole(code, packed, d)}
            once.append(statement)
        elif _varies(code, statement, varying, written, packed_nodes):
            varying |= {d.start_byte for d in declared}
        else:
            once.append(statement)
    _check_once(code, packed, once, varying)
    replaced = [*lane_accesses(packed, lane), *places_of_indices(packed, first)]
    lanes = [lifted(source, s, source.render(s, replaced)) for s in region.body if s not in once]
    needed, per_pack, kept_lane = list[str](), list[str](), list[str]()
    # Backwards: an index is declared for the pack where addresses use it, and for each lane where the arithmetic does.
    addresses = [address_of_pack(packed, group, first) for group in packed.groups]
    above, below = " ".join([*addresses, *map(source.of, packed.conditions)]), " ".join(lanes)
    for statement in reversed(once):
        names = {source.of(name) for name in names_declared(statement)}
        text = source.render(statement, places_of_index(packed, statement, first))
        still = any(d.start_byte in varying for d in statement.children_by_field_name("declarator"))
        used_above, used_below = (any(_named_in(n, where) for n in names) for where in (above, below))
        if used_above:
            needed.insert(0, lifted(source, statement, text))
            above += " " + text
        elif (used_below and not still) or any(_named_in(n, " ".join(per_pack)) for n in names):
            per_pack.insert(0, lifted(source, statement, text))
        if used_below and still:
            kept_lane.insert(0, lifted(source, statement, source.of(statement)))
            below += " " + source.of(statement)
    per_lane = kept_lane + lanes
    if _named_in(region.name, " ".join(per_lane)):
        kind = region.type if region.type != "auto" else "int64_t"
        per_lane.insert(0, f"const {kind} {region.name} = {first} + {lane};")
    return needed, per_pack, per_lane


def _named_in(name: str, text: str) -> bool:
    """Whether a variable is named, and not only a field called alike."""
    return bool(re.search(rf"(?<![\w.]){re.escape(name)}\b", text))


def _check_once(code: Code, packed: Packed, once: list[Node], varying: set[int]) -> None:
    """Raises Unsupported where a condition names what is not declared in front of the loads, for the whole pack."""

    def known(name: Node) -> bool:
        found = code.definition(name)
        return found is None or not packed.region.holds(found.declaration) or found.declaration in once

    lanes = [access.node for group in packed.groups for access in group.accesses]
    if not all(known(name) for node in lanes for name in code.source.walk(node, "identifier")):
        raise Unsupported("an address that is not known in front of the loads")
    for name in (n for node in packed.conditions for n in code.source.walk(node, "identifier")):
        found = code.definition(name)
        varies = found is not None and packed.region.holds(found.declaration) and found.where in varying
        if varies or not known(name):
            raise Unsupported("a condition that is not the same for a whole pack")


def _lane(lane: str, stride: int, remainder: int) -> str:
    return lane if stride == 1 else f"{stride} * {lane} + {remainder}" if remainder else f"{stride} * {lane}"


def _moves_by_constant(region: Region, index: Polynomial) -> bool:
    with suppress(Unsupported):
        Stride(region.symbol).of(index)
        return True
    return False


def _is_whole(code: Code, packed: Packed, declarator: Node) -> bool:
    """Whether an index is the same for all lanes of a pack, given what the host checks."""
    value = field_of(declarator, "value")
    needed = shared_if(packed.region, code.polynomial(value)) if value is not None else None
    return needed is not None and {polynomial for polynomial, _ in packed.multiples} >= set(needed)


def _is_index(code: Code, region: Region, statement: Node, declared: list[Node], varying: set[int]) -> bool:
    """Integers and pointers that move by a constant with the element and come from no memory."""
    for declarator in declared:
        if declarator.type != "init_declarator" or declarator.start_byte in varying:
            return False
        index, kind = code.polynomial(field_of(declarator, "value")), code.source.of(statement, "type")
        if not _moves_by_constant(region, index):
            return False
        if {symbol.where for symbol in index.variables()} & varying - {region.symbol.where}:
            return False  # built on what the body works out
        pointer = field_of(declarator, "declarator").type == "pointer_declarator"
        if not (pointer or kind == "auto" or is_integer(kind)):
            return False
        if pointer and any(code.root_of(s) == "" for s in index.symbols):
            return False  # to a variable of each element's own
    if code.source.has(statement, "subscript_expression"):
        return False
    return not any(code.source.of(n.children[0]) == "*" for n in code.source.walk(statement, "pointer_expression"))


def _varies(code: Code, statement: Node, varying: set[int], written: set[str], packed_nodes: list[Node]) -> bool:
    source = code.source
    for declarator in statement.children_by_field_name("declarator"):
        if declarator.type != "init_declarator" or declarator.start_byte in varying:
            return True
    for node in source.walk(statement, "identifier", "call_expression", "assignment_expression", "update_expression"):
        if node.type in {"assignment_expression", "update_expression"}:
            return True
        if node.type == "call_expression":
            if re.search(r"atomic|sync|shfl|asm", source.of(node, "function")):
                return True
            continue
        if source.of(node) in written:
            return True
        found = code.definition(node)
        if found is not None and found.where in varying:
            return True
    return any(inside(node, statement) for node in packed_nodes)
