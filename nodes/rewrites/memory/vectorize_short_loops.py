"""Neighbouring elements that a thread has in a short loop of its own move as one.

`for (j = 0; j < 8; ++j) sum += x[first + j];` loads a float eight times; the eight are loaded at once in front of the loop, and
such as are only written are put together in registers and stored at once behind it.
The number of turns is a power of two, at most 32. Where the elements do not begin on a multiple of what moves, which the device
asks for every time, they still move one by one, so that the host has nothing to check.
"""

from __future__ import annotations

from contextlib import suppress

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Access, Kernel, Loop
from nodes.rewrites.analysis.regions import Stride
from nodes.rewrites.memory.pack_bodies import addressed, summed
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import free
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import JUMPS, LOOPS, pragma_of, same, upward

_BRANCHES = {"if_statement", "switch_statement", "conditional_expression", "lambda_expression"}
COUNTS = (2, 4, 8, 16, 32)
"""Elements that are held together."""


@rule(
    "cuda",
    expected="one load or store of up to 16 bytes where a thread had one for each of its neighbouring elements",
    speedup=1.1,
    helps={"memory", "latency"},
    once="load_joined",
    risks=(Outcome.INCORRECT,),
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
    source, count = code.source, loop.bound.value
    if (loop.start.value, loop.step.value) != (0, 1) or count not in COUNTS:
        raise Unsupported("no short loop")
    if source.has(loop.body, *JUMPS, *LOOPS) or loop.node.parent.type != "compound_statement":
        raise Unsupported("a loop that is left, has loops of its own or is a branch")
    groups: dict[tuple[Symbol, Polynomial], list[Access]] = {}
    for access in kernel.global_accesses():
        with suppress(Unsupported):
            _check(kernel, loop, access)
            groups.setdefault((access.base, access.offset), []).append(access)
    names, front = code.names(), list[str]()
    for first, *more in groups.values():
        names.add(name := free(f"{first.base.text}_joined", names))
        held, place = f"Lanes<{first.element}, {count}> {name}", _place(code, loop, first)
        front.append(f"{held};" if first.writes else f"const {held} = load_joined<{count}>({place});")
        if first.writes:
            edits.behind(loop.node, f"store_joined({place}, {name});")
        for access in (first, *more):
            edits.replace(access.node, f"{name}.at[{loop.name}]")
    if front:
        edits.in_front(loop.node, *front, *(["#pragma unroll"] if pragma_of(loop.node) is None else []))


def _check(kernel: Kernel, loop: Loop, access: Access) -> None:
    """Raises Unsupported unless the access is to the next element in every turn, a read of an array that the kernel writes nowhere,
    or all that it does to an array."""
    code, source, stride = kernel.code, kernel.source, Stride(loop.symbol)
    mine = [other for other in kernel.accesses if other.root in {access.root, "?"}]
    escapes = {access.root, "?"} & {root for _, root in kernel.escapes}
    if escapes or not inside(access.node, loop.body) or (len(mine) > 1 and any(other.writes for other in mine)):
        raise Unsupported("elements that are elsewhere, or written and met in several places")
    if access.writes and (access.reads or kernel.synchronises):
        raise Unsupported("elements that change in place, or that other threads may wait for")
    if access.wide or access.address or stride.of(access.offset) != 1 or stride.multiples:
        raise Unsupported("no neighbours")
    pointer = code.variable(access.base.node)
    if pointer is None or "volatile" in source.of(pointer.declaration).split():
        raise Unsupported("elements of another type, or memory that others change")
    held = filter(None, (code.definition(name) for name in source.walk(access.node, "identifier")))
    moves = kernel.changes_within(Polynomial.symbol(access.base) + access.offset, [loop.body])
    if moves or any(inside(found.declaration, loop.body) for found in held):
        raise Unsupported("a place that moves, or that the loop works out")
    around = upward(access.node, loop.body)
    if any(here.type in _BRANCHES or source.of(here, "operator") in {"&&", "||"} for here in around):
        raise Unsupported("elements that may be skipped")


def _place(code: Code, loop: Loop, access: Access) -> str:
    """Where the first element is."""
    sign, node = addressed(access)
    variable = code.definition(loop.name_nodes[-1])

    def first(part: Node) -> str:
        uses = code.uses(variable, part)
        return "" if any(same(use, part) for use in uses) else code.source.render(part, [(use, "0") for use in uses])

    return summed(code.source, node, first, sign)
