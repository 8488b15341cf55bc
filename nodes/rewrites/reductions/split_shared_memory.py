"""Pointers into one array of dynamic shared memory become arrays of their own, where a known few elements of each are left.

    extern __shared__ float shared[];
    float* maxima = shared;                              __shared__ float maxima[1];
    float* sums = &shared[blockDim.x / 32];       ->     __shared__ float sums[1];

So it is where the slots of warps were, once canonicalize_reductions has taken these over and only results pass from the first thread to the
others. Each read has to be of what the same pointer wrote last, or another one's value may have been meant.
"""

from __future__ import annotations

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.device_code import Code, Definition, code_of, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.prelude.block_reductions import brought
from nodes.rewrites.reductions.idle_threads import without_idle
from nodes.rewrites.reductions.uses import element_at, index_of
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source, Unsupported
from nodes.rewrites.syntax.tree import field_of, same

MOST_ELEMENTS = 32


@rule(
    "cuda",
    expected="nothing by itself: redundant_broadcast sees whose memory it is",
    normalizes=True,
    after=("warp_shuffle_reduction",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    if not brought(source):
        return None
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            _separate(edits, code, kernel)
    return without_idle(source.reparsed(edits.apply())) if edits.changes else None


def _separate(edits: Edits, code: Code, kernel: Kernel) -> None:
    source = code.source
    array = _dynamic(code, kernel)
    uses = [use for use in code.uses(array, kernel.body) if not inside(use, array.declaration)]
    pointers = [
        (_pointer(code, node, array), node)
        for node in source.walk(kernel.body, "init_declarator") if any(inside(use, node) for use in uses)
    ]  # fmt: skip
    if not pointers or any(not any(inside(u, node) for _, node in pointers) for u in uses):
        raise Unsupported("memory that is used by its own name")
    events: list[tuple[int, bool, str]] = []
    elements: dict[str, int] = {}
    for found, node in pointers:
        for use in code.uses(found, kernel.body):
            if not inside(use, node):
                at, writes, element = _element(code, use)
                events.append((at, writes, found.name))
                elements[found.name] = max(elements.get(found.name, 0), element + 1)
    last = ""
    for _, writes, name in sorted(events):
        last = name if writes else last
        if last != name:
            raise Unsupported("a read of what another pointer may have written")
    for found, _ in pointers:
        element = source.of(found.declaration, "type")
        edits.replace(found.declaration, f"__shared__ {element} {found.name}[{elements.get(found.name, 1)}];")


def _dynamic(code: Code, kernel: Kernel) -> Definition:
    """The kernel's one array of dynamic shared memory."""
    found = [made for node in kernel.shared if kernel.is_dynamic(node) for made in code.declared(node)]
    if len(found) != 1:
        raise Unsupported("no dynamic shared memory, or several names for it")
    return found[0]


def _pointer(code: Code, node: Node, array: Definition) -> Definition:
    """`T* p = array`, `= array + n` or `= &array[n]`, for good, of the array's own type."""
    source, declaration = code.source, node.parent
    found = code.declared(declaration) if declaration is not None and declaration.type == "declaration" else []
    if len(found) != 1 or field_of(node, "declarator").type != "pointer_declarator":
        raise Unsupported("no pointer of the kernel's own")
    types = {source.of(d, "type") for d in (declaration, array.declaration)}
    if len(types) != 1 or source.has(found[0].value, "call_expression"):
        raise Unsupported("memory by another type")
    return found[0]


def _element(code: Code, use: Node) -> tuple[int, bool, int]:
    """Where `p[n]` stands, whether it is written there, and n, which is a number."""
    place, store = element_at(code, use)
    index = index_of(code, place)
    if same(place, use) or index is None or not 0 <= index < MOST_ELEMENTS:
        raise Unsupported("an element that is not known")
    return (store.end_byte, True, index) if store is not None else (place.start_byte, False, index)
