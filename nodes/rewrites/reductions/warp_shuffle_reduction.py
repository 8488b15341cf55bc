"""A reduction tree in shared memory becomes warp shuffles and one step across warps.

Recognised: `a[tid] = value; __syncthreads();` followed by a loop with a barrier in every round (at its end or its start), after
which `a[0]` is the result: the loop runs on the syntax tree (see block_values.py), for the width that a launch has, or for
powers of two. One barrier instead of nine.
"""

from __future__ import annotations

from dataclasses import dataclass

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_arithmetic import UNKNOWN, Memory, Part
from nodes.rewrites.analysis.block_shape import is_barrier, whole_warps, width_of
from nodes.rewrites.analysis.device_code import Code, code_of, inside
from nodes.rewrites.analysis.insertions import require
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.prelude.block_reductions import NAMES
from nodes.rewrites.reductions.idle_threads import drop_dynamic
from nodes.rewrites.reductions.surroundings import Surroundings
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same, statements

POWERS = (32, 128, 1024)
"""Widths of blocks that are only known when they run."""
_ELEMENT = "$array[$index]"


@dataclass
class Tree:
    """One reduction: the statements it consists of, and the arrays it reduces."""

    stores: list[Node]
    barriers: list[Node]
    """Beside the loop's own: `block_sum` and its siblings have one that does for them."""
    loop: Node
    arrays: dict[str, str]
    """Array -> sum, max or min."""
    values: dict[str, str]
    end: int
    """Where the result stops being valid: the next store to the array, or the end of the block."""


@rule(
    "cuda",
    expected="one barrier a reduction instead of one for every halving",
    speedup=1.15,
    helps={"memory", "latency", "compute"},
    after=("restrict_pointers",),
    risks=(Outcome.INCORRECT, Outcome.RUNTIME_ERROR),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits, site = Edits(source), next_site(code)
    needed: set[str] = set()
    for kernel in code.kernels:
        with edits.attempt():
            used, site = _rewrite_kernel(edits, code, kernel, site)
            needed |= used
    if not edits.changes:
        return None
    for kind in sorted(needed):
        require(edits, code, f"block_{kind}")
    return edits.apply()


def next_site(code: Code) -> int:
    """The first SITE that no call of ours has yet."""
    taken = [-1]
    for call in code.source.walk(None, "template_function"):
        listed = field_of(call, "arguments")
        first = code.source.of(listed.named_children[0]) if listed is not None and listed.named_children else ""
        if code.source.of(call, "name") in NAMES and first.isdigit():
            taken.append(int(first))
    return max(taken) + 1


def _shared_arrays(kernel: Kernel) -> dict[str, Node]:
    found = {}
    for node in kernel.shared:
        declarators = node.children_by_field_name("declarator")
        if len(declarators) == 1 and declarators[0].type == "array_declarator":
            found[kernel.source.of(declarators[0], "declarator")] = node
    return found


def _rewrite_kernel(edits: Edits, code: Code, kernel: Kernel, site: int) -> tuple[set[str], int]:
    shared = _shared_arrays(kernel)
    trees = [
        tree for node in kernel.source.walk(kernel.body, "for_statement") if (tree := _tree(code, kernel, node, shared))
    ]
    if not trees or not kernel.launches:
        raise Unsupported("no reduction tree")
    if not all(whole_warps(code, kernel, launch.block) for launch in kernel.launches):
        raise Unsupported("blocks that may not be whole warps")
    arrays = {name for tree in trees for name in tree.arrays}
    handled: list[Node] = [node for tree in trees for node in (*tree.stores, tree.loop)]
    kinds: set[str] = set()
    for tree in trees:
        reads = {}
        for access in kernel.accesses:
            if access.base.text in tree.arrays and tree.loop.end_byte <= access.node.start_byte < tree.end:
                if access.writes or access.offset.value != 0 or access.root:
                    raise Unsupported("an element of the tree other than the result")
                reads.setdefault(access.base.text, []).append(access.node)
        lines = []
        for name, kind in tree.arrays.items():
            result = code.fresh(f"{name}_{kind}" if kind not in name else f"{name}_of_block")
            if len([t for t in trees if name in t.arrays and t.arrays[name] == kind]) > 1:
                result = f"{result}_{site}"
            element = code.source.of(shared[name], "type")
            lines.append(f"const {element} {result} = block_{kind}<{site}>({tree.values[name]});")
            site += 1
            kinds.add(kind)
            for node in reads.get(name, []):
                edits.replace(node, result)
                handled.append(node)
        edits.write(tree.stores[0], lines)
        for node in [*tree.stores[1:], *tree.barriers, tree.loop]:
            edits.remove(node)
    for access in kernel.accesses:
        if access.base.text in arrays and not access.root and not any(inside(access.node, node) for node in handled):
            raise Unsupported("another use of the tree's memory")
    for call, _ in kernel.escapes:
        if any(code.source.of(n) in arrays for n in code.source.walk(call, "identifier")):
            raise Unsupported("the tree's memory is passed on")
    for name in arrays:
        declaration = shared[name]
        if kernel.is_dynamic(declaration):
            mentions = sum(code.source.of(n) == name for n in code.source.walk(kernel.body, "identifier"))
            used = sum(1 for a in kernel.accesses if a.base.text == name)
            if mentions != used + 1:
                raise Unsupported("dynamic shared memory that serves more than the tree")
            drop_dynamic(edits, kernel, declaration)
        edits.remove(declaration)
    return kinds, site


def _tree(code: Code, kernel: Kernel, loop: Node, shared: dict[str, Node]) -> Tree | None:
    source, inner = code.source, statements(field_of(loop, "body"))
    early = len(inner) == 2 and is_barrier(source, inner[0])
    if loop.parent is None or len(inner) != 2 or not (early or is_barrier(source, inner[1])):
        return None
    places = (match(source, field_of(n, "left"), _ELEMENT) for n in source.walk(inner[early], "assignment_expression"))
    written = dict.fromkeys(source.of(place["array"]) if place is not None else "" for place in places)
    siblings = [c for c in loop.parent.named_children if c.type not in {"comment", "preproc_call"}]
    at = next(i for i, c in enumerate(siblings) if same(c, loop))
    around = [s for s in (siblings[at - 1] if at else None, siblings[at + 1] if at + 1 < len(siblings) else None) if s]
    barriers = [s for s in around[: 2 if early else 1] if is_barrier(source, s)]
    ready = at - 1 if barriers and same(barriers[0], siblings[at - 1]) else at
    if not early and ready == at:
        return None
    stores: list[Node] = []
    values: dict[str, str] = {}
    for statement in reversed(siblings[:ready]):
        stored = _store(code, statement)
        if stored is None or stored[0] not in written or stored[0] in values:
            break
        stores.insert(0, statement)
        values[stored[0]] = stored[1]
    if not written or set(values) != set(written) or not shared.keys() >= set(written):
        return None
    try:
        arrays = {name: _kind(code, kernel, loop, name, {name: shared[name] for name in written}) for name in written}
    except Unsupported:
        return None
    again = (s for s in siblings[at + 1 :] if (stored := _store(code, s)) is not None and stored[0] in arrays)
    end = next((later.start_byte for later in again), loop.parent.end_byte)
    return Tree(stores, barriers, loop, arrays, values, end)


def _kind(code: Code, kernel: Kernel, loop: Node, array: str, shared: dict[str, Node]) -> str:
    """How the loop joins what each thread has in an array. Raises Unsupported where `a[0]` is not what all of them come to."""
    kinds, of = set[str](), {name: code.source.of(node, "type") for name, node in shared.items()}
    for launch in kernel.launches:
        width = width_of(code, kernel, launch)
        for threads in POWERS if width is None else (width,):
            block = Surroundings(code, kernel, launch, threads, of[array]).block
            singles, frame = block.singles(), block.frame()
            for name, element in of.items():
                held = {t: (part if name == array else UNKNOWN, t, -1) for t, part in enumerate(singles)}
                frame.scopes[0][name] = Memory(name, element, held=held)
            block.run(loop, frame, block.everyone)
            if frame.scopes[0][array].held[0][0] != Part(block.full):
                raise Unsupported("no reduction over the block")
            kinds.add(block.kind)
    if len(kinds) != 1:
        raise Unsupported("no launch, or launches that join it differently")
    return kinds.pop()


def _store(code: Code, statement: Node) -> tuple[str, str] | None:
    """Array and value of `a[tid] = value;`."""
    form = match(code.source, statement, f"{_ELEMENT} = $value;")
    if form is None or code.polynomial(form["index"]) != Polynomial.symbol(THREAD):
        return None
    return code.source.of(form["array"]), code.source.of(form["value"])
