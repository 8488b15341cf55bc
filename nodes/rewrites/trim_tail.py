"""A scalar tail loop no longer repeats what the loop over packs has already written.

Where a block writes `out[row][0 .. packs * lanes)` in packs and then elements from some earlier index on one by one, with
no barrier between, both threads that write an element must agree on it, or the kernel would be a race. The tail may then
begin behind the last pack.
"""

from __future__ import annotations

import itertools

from nodes.rewrites import Facts
from nodes.rewrites.algebra import Polynomial
from nodes.rewrites.device_code import Access, Code, Kernel, Loop, drop_unused, inside, same
from nodes.rewrites.regions import BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"memory", "latency", "compute"})
EXPECTED = "no element is computed twice: fewer bytes and no scalar pass where rows divide into packs"
SPEEDUP = 1.3
ORDER = 10


def rewrite(source: Source, facts: Facts) -> str | None:
    code = Code(source)
    edits, names = Edits(source), set()
    for kernel in code.kernels:
        try:
            names |= _rewrite_kernel(edits, code, kernel)
        except Unsupported:
            continue
    if not edits.changes:
        return None
    return drop_unused(source, edits.apply(), names)


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel) -> set[str]:
    if kernel.synchronises or kernel.escapes:
        return set()
    loops = [loop for loop in thread_loops(kernel) if loop.step == Polynomial.symbol(BLOCK_DIM)]
    names: set[str] = set()
    for packs, tail in itertools.pairwise(loops):
        if not same(packs.node.parent, tail.node.parent) or packs.start != Polynomial.symbol(THREAD):
            continue
        whole = _written(kernel, packs)
        single = _written(kernel, tail)
        others = [
            a
            for a in kernel.accesses
            if a.writes and a.root and not inside(a.node, packs.node) and not inside(a.node, tail.node)
        ]
        if whole is None or single is None or others or whole.root != single.root or whole.element == single.element:
            continue
        if whole.offset != Polynomial.symbol(packs.symbol) or whole.base.node is None:
            continue
        arguments = whole.base.node.child_by_field_name("arguments")
        if whole.base.node.type != "call_expression" or arguments is None:
            continue
        row = code.polynomial(arguments.named_children[0])
        if row + Polynomial.symbol(tail.symbol) != Polynomial.symbol(single.base) + single.offset:
            continue
        bound = code.source.of(packs.bound_node)
        lanes = f"(sizeof({whole.element}) / sizeof({single.element}))"
        names |= {code.source.of(n) for n in code.source.walk(tail.start_node, "identifier")}
        edits.replace(tail.start_node, f"{bound if bound.isidentifier() else f'({bound})'} * {lanes} + threadIdx.x")
    return names


def _written(kernel: Kernel, loop: Loop) -> Access | None:
    """The one array access that the loop writes, in every round."""
    writes = [a for a in kernel.accesses if a.writes and a.root and inside(a.node, loop.node)]
    if len(writes) != 1 or writes[0].root == "?" or writes[0].reads:
        return None
    here = writes[0].node
    while here.parent is not None and not same(here.parent, loop.body):
        here = here.parent
        if here.type in {"if_statement", "for_statement", "while_statement", "lambda_expression"}:
            return None
    return writes[0]
