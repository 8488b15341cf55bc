"""Neighbouring elements that a thread has in a short loop of its own move as one.

`for (j = 0; j < 8; ++j) to[first + j] = quantised(v[j]);` stores a byte eight times; the bytes are put together in registers
and stored at once, and loads of that kind are made at once in front of the loop. The number of turns must be known when the
kernel is compiled: a power of two, at most 32. Where the elements do not begin on a multiple of what moves, which the device
asks for every time, they still move one by one, so that the host has nothing to check.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import value_in
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.memory.pack_bodies import addressed
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import JUMPS, LOOPS, field_of, same, upward

_BRANCHES = {"if_statement", "switch_statement", "conditional_expression", "lambda_expression"}
_ORDERS = re.compile(r"atomic|sync|fence|\basm\b|volatile")

MOST = 32
"""Elements that are held together."""


@dataclass
class _Joined:
    """Accesses to the same neighbouring elements, one a turn of the loop."""

    accesses: list[Access]
    name: str = field(default="")

    @property
    def reads(self) -> bool:
        return any(access.reads for access in self.accesses)

    @property
    def writes(self) -> bool:
        return any(access.writes for access in self.accesses)


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
    if not edits.changes:
        return None
    require(edits, code, "lanes", "joined_lanes", includes=("cstdint",))
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
    found = _groups(code, kernel, loop)
    if not found:
        raise Unsupported("no neighbours")
    names = code.names()
    for group in found:
        stem = group.accesses[0].base.text if group.accesses[0].base.text.isidentifier() else group.accesses[0].root
        group.name = free(f"{stem}_joined", names)
        names.add(group.name)
    _write(edits, code, loop, found)


def _groups(code: Code, kernel: Kernel, loop: Loop) -> list[_Joined]:
    mine = [a for a in kernel.accesses if inside(a.node, loop.body) and a.root]
    written = {a.root for a in mine if a.writes}
    if "?" in written or (written and any(a.root == "?" for a in mine)):
        raise Unsupported("a pointer of unknown origin")
    groups: dict[tuple[object, Polynomial], _Joined] = {}
    alone: set[str] = set()
    for access in mine:
        try:
            _check(code, kernel, loop, access)
        except Unsupported:
            alone.add(access.root)
            continue
        groups.setdefault((access.base, access.offset), _Joined([])).accesses.append(access)
    if written & alone:
        raise Unsupported("a store that stays in the loop")
    by_root: dict[str, int] = {}
    for group in groups.values():
        by_root[group.accesses[0].root] = by_root.get(group.accesses[0].root, 0) + 1
    if any(by_root[root] > 1 for root in written):
        raise Unsupported("elements that are written at one place and met at another")
    return [g for g in groups.values() if g.accesses[0].root not in alone]


def _check(code: Code, kernel: Kernel, loop: Loop, access: Access) -> None:
    """Whether the access is to the next element in every turn."""
    source = code.source
    rest = access.offset.without(loop.symbol)
    if access.wide or access.address or access.offset.coefficient(loop.symbol) != Polynomial.constant(1):
        raise Unsupported("no neighbours")
    if rest.depends_on(loop.symbol) or any(m.count(loop.symbol) > 1 for m, _ in access.offset.terms):
        raise Unsupported("no neighbours")
    if access.base.depends_on(loop.symbol) or access.base.node is None or access.base.node.type != "identifier":
        raise Unsupported("elements of another type")
    pointer = code.definition(access.base.node)
    if pointer is None or "volatile" in source.of(pointer.declaration).split():
        raise Unsupported("memory that others change")
    if kernel.changes_within(Polynomial.symbol(access.base) + rest, [loop.body]):
        raise Unsupported("a place that moves")
    for name in source.walk(access.node, "identifier"):
        found = code.definition(name)
        if found is not None and inside(found.declaration, loop.body):
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
        (only, *more) = value.symbols
        bytes_ = only.operands[0].value if only.operator == "/" and "sizeof" in only.text else None
        if bytes_ and not more and value == Polynomial.symbol(only):
            counts, fewest = {bytes_}, 1  # over the size of an element
        else:
            counts = {value_in(code, kernel, launch, bound) for launch in kernel.launches} or {None}
    return all(n is not None and fewest <= n <= MOST and n & (n - 1) == 0 for n in counts)


def _write(edits: Edits, code: Code, loop: Loop, found: list[_Joined]) -> None:
    source = code.source
    count, indent = source.of(loop.bound_node), source.indent(loop.node)
    count = count if re.fullmatch(r"\w+", count) else f"({count})"
    around = loop.node.parent
    before = loop.node.prev_named_sibling
    unrolled = before is not None and before.type == "preproc_call" and "unroll" in source.of(before)
    if around is None or around.type != "compound_statement":
        raise Unsupported("a loop that is a branch")
    front, behind = [], []
    for group in found:
        element, place = group.accesses[0].element, _place(code, loop, group.accesses[0])
        if group.reads:
            head = "" if group.writes else "const "
            front.append(f"{head}Lanes<{element}, {count}> {group.name} = load_joined<{count}>({place});")
        else:
            front.append(f"Lanes<{element}, {count}> {group.name};")
        if group.writes:
            behind.append(f"store_joined({place}, {group.name});")
        for access in group.accesses:
            edits.replace(access.node, f"{group.name}.at[{loop.name}]")
    if unrolled and before is not None:
        line = source.line_start(before)
        edits.insert(line, "".join(f"{indent}{text}\n" for text in front))
    else:
        edits.insert(loop.node.start_byte, f"\n{indent}".join(front) + f"\n#pragma unroll\n{indent}")
    edits.insert(loop.node.end_byte, "".join(f"\n{indent}{text}" for text in behind))


def _place(code: Code, loop: Loop, access: Access) -> str:
    """Where the first element is."""
    source, (sign, node) = code.source, addressed(access)
    named = (n for n in source.walk(node, "identifier") if source.of(n) == loop.name)
    uses = [n for n in named if (found := code.definition(n)) is not None and found.where == loop.symbol.where]
    replaced = [(use, "0") for use in uses]
    if len(uses) == 1:
        sides = match(source, uses[0].parent, "$a + $b")
        if sides is not None:
            replaced = [(uses[0].parent, source.of(sides["a" if same(sides["b"], uses[0]) else "b"]))]
        elif sign and same(uses[0].parent, field_of(node, "indices")):
            return source.of(node, "argument")
    return sign + source.render(node, replaced)
