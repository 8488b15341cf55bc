"""Neighbouring elements that a thread has in a short loop of its own move as one.

`for (j = 0; j < 8; ++j) to[first + j] = quantised(v[j]);` stores a byte eight times; the bytes are put together in registers
and stored at once, and loads of that kind are made at once in front of the loop. The number of turns must be known when the
kernel is compiled: a power of two, at most 32. Where the elements do not begin on a multiple of what moves, which the device
asks for every time, they still move one by one, so that the host has nothing to check.
"""

from __future__ import annotations

import re
from collections import Counter

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import value_in
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.regions import Stride
from nodes.rewrites.memory.pack_bodies import addressed, summed
from nodes.rewrites.memory.packs import Group
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.insert import as_factor, free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import JUMPS, LOOPS, pragma_of, same, upward

_BRANCHES = {"if_statement", "switch_statement", "conditional_expression", "lambda_expression"}
_ORDERS = re.compile(r"atomic|sync|fence|\basm\b|volatile")

MOST = 32
"""Elements that are held together."""


@rule(
    "cuda",
    expected="one load or store of up to 16 bytes where a thread had one for each of its neighbouring elements",
    speedup=1.1,
    helps={"memory", "latency"},
    after=("block_per_row",),
    risks=(Outcome.INCORRECT,),
    once="load_joined",
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        for loop in kernel.loops:
            with edits.attempt():
                _join(edits, code, kernel, loop)
    require(edits, code, "lanes", "joined_lanes")
    return edits.apply()


def _join(edits: Edits, code: Code, kernel: Kernel, loop: Loop) -> None:
    source = code.source
    if loop.start.value != 0 or loop.step.value != 1 or not _is_short(code, kernel, loop.bound_node):
        raise Unsupported("no short loop")
    if source.has(loop.body, *JUMPS, *LOOPS):
        raise Unsupported("a loop that is left, or has loops of its own")
    if any(inside(call, loop.body) for call, _ in kernel.escapes):
        raise Unsupported("a call that may do anything")
    for call in source.walk(loop.body, "call_expression"):
        name = source.called(call).split(".")[-1]
        if any(_ORDERS.search(said) for said in [name, *(source.of(f) for f in code.overloads.get(name, []))]):
            raise Unsupported("a loop in which the order of loads and stores may matter to others")
    _write(edits, code, loop, _groups(kernel, loop))


def _groups(kernel: Kernel, loop: Loop) -> list[Group]:
    """Accesses to the same neighbouring elements, one a turn of the loop. Raises Unsupported where there are none, or where elements
    that are written are met elsewhere in the loop too."""
    mine = [a for a in kernel.accesses if inside(a.node, loop.body) and a.root]
    groups: dict[tuple[object, Polynomial], Group] = {}
    alone: set[str] = set()
    for access in mine:
        try:
            _check(kernel, loop, access)
            groups.setdefault((access.base, access.offset), Group([], 1)).accesses.append(access)
        except Unsupported:
            alone.add(access.root)
    places, written = Counter(group.first.root for group in groups.values()), {a.root for a in mine if a.writes}
    if written & alone or any(places[root] > 1 for root in written) or (written and any(a.root == "?" for a in mine)):
        raise Unsupported("a store that stays in the loop, or elements that are met elsewhere or anywhere")
    found = [group for group in groups.values() if group.first.root not in alone]
    if not found:
        raise Unsupported("no neighbours")
    names = kernel.code.names()
    for group in found:
        group.name = free(f"{group.first.base.text}_joined", names)
        names.add(group.name)
    return found


def _check(kernel: Kernel, loop: Loop, access: Access) -> None:
    """Raises Unsupported where the access is not to the next element in every turn."""
    code, source, stride = kernel.code, kernel.source, Stride(loop.symbol)
    if access.wide or access.address or stride.of(access.offset) != 1 or stride.multiples:
        raise Unsupported("no neighbours")
    pointer = code.variable(access.base.node)
    if pointer is None or "volatile" in source.of(pointer.declaration).split():
        raise Unsupported("elements of another type, or memory that others change")
    if kernel.changes_within(Polynomial.symbol(access.base) + access.offset, [loop.body]):
        raise Unsupported("a place that moves")
    held = (code.definition(name) for name in source.walk(access.node, "identifier"))
    if any(found is not None and inside(found.declaration, loop.body) for found in held):
        raise Unsupported("a place that the loop works out")
    around = list(upward(access.node, loop.body))
    if any(here.type in _BRANCHES or source.of(here, "operator") in {"&&", "||"} for here in around):
        raise Unsupported("elements that may be skipped")


def _is_short(code: Code, kernel: Kernel, bound: Node) -> bool:
    """Whether the number of turns is a power of two up to MOST in every launch, known when the kernel is compiled."""
    value = code.polynomial(bound)
    if not code.is_constant(bound):
        return False
    counts, fewest = {value.value}, 2
    if value.value is None:
        only = value.only
        bytes_ = only.operands[0].value if only is not None and only.operator == "/" and "sizeof" in only.text else None
        if bytes_:
            counts, fewest = {bytes_}, 1  # over the size of an element
        else:
            counts = {value_in(code, kernel, launch, bound) for launch in kernel.launches} or {None}
    return all(n is not None and fewest <= n <= MOST and n & (n - 1) == 0 for n in counts)


def _write(edits: Edits, code: Code, loop: Loop, found: list[Group]) -> None:
    count = as_factor(code.source.of(loop.bound_node))
    if loop.node.parent is None or loop.node.parent.type != "compound_statement":
        raise Unsupported("a loop that is a branch")
    front = []
    for group in found:
        held, place = f"Lanes<{group.first.element}, {count}> {group.name}", _place(code, loop, group.first)
        if group.reads:
            held = f"{'' if group.writes else 'const '}{held} = load_joined<{count}>({place})"
        front.append(f"{held};")
        if group.writes:
            edits.behind(loop.node, f"store_joined({place}, {group.name});")
        for access in group.accesses:
            edits.replace(access.node, f"{group.name}.at[{loop.name}]")
    edits.in_front(loop.node, *front, *(["#pragma unroll"] if pragma_of(loop.node) is None else []))


def _place(code: Code, loop: Loop, access: Access) -> str:
    """Where the first element is."""
    source, variable = code.source, code.definition(loop.name_nodes[-1])
    sign, node = addressed(access)

    def first(part: Node) -> str:
        uses = code.uses(variable, part)
        return "" if any(same(use, part) for use in uses) else source.render(part, [(use, "0") for use in uses])

    return summed(source, node, first, sign)
