"""A region's body in three: what a pack's addresses need, what is the same for a whole pack, and what each lane does."""

from __future__ import annotations

import re
from collections.abc import Callable

from tree_sitter import Node

from nodes.rewrites.analysis.kernels import Access
from nodes.rewrites.memory.packs import Group, Packed, lane_of
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Source, lifted
from nodes.rewrites.syntax.tree import field_of, names_declared


def places_of_indices(packed: Packed, first: str) -> list[tuple[Node, str]]:
    """The element's index where the pack's first stands for all: in conditions."""
    return [place for node in packed.conditions for place in places_of_index(packed, node, first)]


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
    access = next((a for a in begins if a.writes or not stored), begins[0])
    sign, node = addressed(access)
    return sign + packed.kernel.source.render(node, places_of_index(packed, node, first))


def addressed(access: Access) -> tuple[str, Node]:
    """What an access's address is written with: `&` and the element, or nothing and the pointer that it goes through."""
    if not access.address and access.node.type == "call_expression":  # __ldg(pointer)
        return "", field_of(access.node, "arguments").named_children[0]
    if not access.address and access.node.type == "pointer_expression":
        return "", field_of(access.node, "argument")
    return "" if access.address else "&", access.node


def summed(source: Source, node: Node, part: Callable[[Node], str], sign: str = "") -> str:
    """An address as the sum of what `part` makes of its summands; without those that are "", as `x` of `&x[first]` without `first`."""
    element, terms = match(source, node, "$x[$i]" if sign else "&$x[$i]"), match(source, node, "$a + $b")
    if element is not None:
        array, index = (summed(source, element[hole], part) for hole in ("x", "i"))
        return f"&{array}[{index}]" if index else array
    if terms is not None:
        return " + ".join(filter(None, (summed(source, terms[hole], part) for hole in ("a", "b"))))
    return sign + part(node)


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
    region, source, common = packed.region, packed.kernel.source, packed.common
    replaced = [*lane_accesses(packed, lane), *places_of_indices(packed, first)]
    lanes = [lifted(source, s, source.render(s, replaced)) for s in region.body if s not in common.once]
    needed, per_pack, kept_lane = list[str](), list[str](), list[str]()
    # Backwards: an index is declared for the pack where addresses use it, and for each lane where the arithmetic does.
    stored = [address_of_pack(packed, group, first, stored=True) for group in packed.groups if group.writes]
    addresses = [*stored, *(address_of_pack(packed, group, first) for group in packed.groups)]
    above, below = " ".join([*addresses, *map(source.of, packed.conditions)]), " ".join(lanes)
    for statement in reversed(common.once):
        names = {source.of(name) for name in names_declared(statement)}
        text = source.render(statement, places_of_index(packed, statement, first))
        still = any(d.start_byte in common.varying for d in statement.children_by_field_name("declarator"))
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


def _lane(lane: str, stride: int, remainder: int) -> str:
    return lane if stride == 1 else f"{stride} * {lane} + {remainder}" if remainder else f"{stride} * {lane}"
