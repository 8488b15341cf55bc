"""A scalar tail loop no longer repeats what the loop over packs has already written.

Where a block writes `out[row][0 .. packs * lanes)` in packs and then elements from some earlier index on one by one, with
no barrier between, both threads that write an element must agree on it, or the kernel would be a race. Where the host launches
the kernel for rows of whole packs only, nothing is left for the tail and it goes: an empty loop still costs each thread its
bounds, in float32 a division of 64-bit integers.
"""

from __future__ import annotations

import itertools
import re

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import code_of, inside
from nodes.rewrites.analysis.kernels import Kernel, Loop
from nodes.rewrites.analysis.launches import Launch, host_text
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import bare, match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, operands
from nodes.rewrites.syntax.tree import JUMPS, children_of, conditions_of, same, statement_around

_CHANGES = ("assignment_expression", "update_expression")


@rule(
    "cuda",
    expected="no element is computed twice: fewer bytes and no scalar pass where rows divide into packs",
    speedup=1.3,
    helps={"memory", "latency", "compute"},
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        loops = [loop for loop in thread_loops(kernel) if loop.step.only == BLOCK_DIM]
        for packs, tail in itertools.pairwise(loops):
            with edits.attempt():
                _check(kernel, packs, tail)
                _drop(edits, kernel, packs, tail)
    return edits.apply()


def _check(kernel: Kernel, packs: Loop, tail: Loop) -> None:
    """Raises Unsupported unless the packs are all of what the tail writes, which is the only other thing that the kernel does."""
    code = kernel.code
    if kernel.synchronises or kernel.escapes or not kernel.launches or packs.start.only != THREAD:
        raise Unsupported("threads that talk, or packs that begin elsewhere")
    written = [access for access in kernel.accesses if access.writes and access.root]
    if len(written) != 2 or written[0].root != written[1].root or any(access.reads for access in written):
        raise Unsupported("other elements")
    whole, single = written
    if not same(statement_around(whole.node).parent, packs.body) or code.source.has(packs.body, *JUMPS):
        raise Unsupported("packs that are not always written")
    seen, place = children_of(whole.base.node, "arguments"), Polynomial.symbol(single.base) + single.offset
    if whole.offset.only != packs.symbol or len(seen) != 1 or not inside(single.node, tail.body):
        raise Unsupported("packs of unknown places")
    if code.polynomial(seen[0]) + Polynomial.symbol(tail.symbol) != place:
        raise Unsupported("a tail of another row")
    count = match(code.source, code.settled(packs.bound_node), "$length / $lanes")
    if count is None or code.polynomial(count["length"]) != tail.bound:
        raise Unsupported("packs of another length")
    lanes = code.source.of(code.settled(count["lanes"]))
    # `template <typename T> struct alignas(16) Pack { T lane[16 / sizeof(T)]; };`
    form = rf"template <typename (\w+)> struct (alignas\(\w+\) )?(\w+) {{ \1 \w+\[{re.escape(lanes)}\]; }};"
    structs = re.finditer(form, " ".join(code.source.text.split()))
    if whole.element not in {f"{struct[3]}<{struct[1]}>" for struct in structs}:
        raise Unsupported("packs of another number of lanes")
    if not all(_divides(kernel, launch, count["length"], lanes) for launch in kernel.launches):
        raise Unsupported("rows that may have more than packs")


def _divides(kernel: Kernel, launch: Launch, length: Node, lanes: str) -> bool:
    """Whether `length % lanes == 0` holds where the kernel is launched, by the ifs around it."""
    code, of = kernel.code, kernel.source.of
    conditions = (code.settled(bare(condition)) for condition in conditions_of(launch.statement))
    parts = [part for condition in conditions for part in operands(kernel.source, condition, "&&")]
    found = filter(None, (match(kernel.source, part, "$n % $lanes == 0") for part in parts))
    known = {(of(one["n"]), of(code.settled(one["lanes"]))) for one in found}
    return (host_text(kernel, launch, length), lanes) in known


def _drop(edits: Edits, kernel: Kernel, packs: Loop, tail: Loop) -> None:
    """Removes the tail, and the comments and declarations in front of it that are for nothing else."""
    code, before, gone = kernel.code, tail.node.prev_named_sibling, [tail.node]
    while before is not None and not same(before, packs.node):
        if before.type not in {"declaration", "comment"} or edits.source.has(before, *_CHANGES):
            raise Unsupported("something else in between")
        uses = [use for found in code.declared(before) for use in code.uses(found, kernel.body)]
        if all(any(inside(use, node) for node in gone) for use in uses):
            gone.append(before)
        before = before.prev_named_sibling
    if before is None:
        raise Unsupported("loops apart from each other")
    for node in gone:
        edits.remove(node)
