"""A kernel reads its block's width from `blockDim.x` instead of a constant that every launch repeats.

Changes nothing by itself, but steps that choose the width need it: `i += BLOCK` with `kernel<T, BLOCK><<<n, BLOCK>>>`,
`i += 256` with `<<<n, 256>>>`, a parameter `block_size` that is passed the width. Likewise the number of its warps, where these
are counted over all blocks: `blockIdx.x * 8 + threadIdx.x / 32`.
"""

from __future__ import annotations

import itertools

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import WARP, value_in, width_of
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.regions import BLOCK, THREAD
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Source, inside
from nodes.rewrites.syntax.tree import field_of, same, upward

_MADE = {f"{kind}_expression" for kind in ("binary", "parenthesized", "conditional", "unary", "cast")}


@rule(
    "cuda",
    expected="nothing by itself: later steps may then choose the width of a block",
    normalizes=True,
    after=("single_assignment",),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code = code_of(source)
    edits = Edits(source)
    for kernel in code.kernels:
        with edits.attempt():
            for node in _constants(code, kernel):
                edits.replace(node, "blockDim.x")
        with edits.attempt():
            for node in _warp_counts(code, kernel):
                edits.replace(node, f"(blockDim.x / {WARP})")
    return edits.apply()


def _constants(code: Code, kernel: Kernel) -> list[Node]:
    """Where the kernel names the width: in steps of loops, beside blockIdx.x and, by a name, in what only a running kernel knows."""
    source, names = kernel.source, _widths(code, kernel)
    planar = any(launch.extents(launch.block)[1] != "1" for launch in kernel.launches)
    steps = [loop.step_node for loop in kernel.loops if loop.step_node is not None
             and (loop.start.only == THREAD or not planar)]  # fmt: skip
    found = [n for n in source.walk(kernel.body, "identifier", "number_literal") if source.of(n) in names]
    # In a block of two dimensions the number may be a warp's as well, of which later steps make no block's.
    return [n for n in found if any(inside(n, step) for step in steps) or (not planar and _is_value(code, n))]


def _is_value(code: Code, node: Node) -> bool:
    """Whether a number scales blockIdx.x, or a name is part of what the compiler need not know."""
    if node.type == "number_literal":
        found = match(code.source, node.parent, "$a * $b")
        return found is not None and "blockIdx.x" in {code.source.of(found["a"]), code.source.of(found["b"])}
    *_, whole = itertools.takewhile(lambda here: same(here, node) or here.type in _MADE, upward(node))
    return not code.is_constant(whole)


def _warp_counts(code: Code, kernel: Kernel) -> list[Node]:
    """Numbers, also by a name, that are how many warps every launch's blocks have and scale blockIdx.x to count warps."""
    source, polynomial, found = code.source, code.polynomial, list[Node]()
    for node in source.walk(kernel.body, "number_literal", "identifier"):
        count, warps, known = polynomial(node), polynomial(node.parent), code.definition(node)
        longer = known is not None and source.of(known.declaration, "type") not in {"", "int"}
        if longer or warps != count * Polynomial.symbol(BLOCK):
            continue
        slot = warps + code.divided(None, "/", Polynomial.symbol(THREAD), Polynomial.constant(WARP))
        counted = any(polynomial(around) == slot for around in upward(node.parent, kernel.body))
        numbers = ((launch, value_in(code, kernel, launch, code.settled(node)) or 0) for launch in kernel.launches)
        if counted and all(width_of(code, kernel, launch) == number * WARP for launch, number in numbers):
            found.append(node)
    return found


def _widths(code: Code, kernel: Kernel) -> set[str]:
    """Names and numbers that are the block's width in every launch; of a block of two dimensions the one along x."""
    found: list[set[str]] = []
    for launch in kernel.launches:
        x, _, z = launch.extents(launch.block)
        if z != "1":
            return set()
        pairs = zip(kernel.template_names, launch.template_arguments, strict=False)
        passed = zip([p.name for p in kernel.parameters], launch.arguments, strict=False)
        mine = {name for name, argument in pairs if argument == x}
        mine |= {name for name, argument in passed if _is_width(code, kernel, name, argument, x)}
        node = launch.along_x(launch.block)
        width = code.definition(field_of(node, "type") or node)  # `dim3 block(WIDTH)` reads as a function
        if x.isdigit() or (width is not None and width.kind in {"macro", "global"}):
            mine.add(x)
        found.append(mine)
    return set.intersection(*found) if found else set()


def _is_width(code: Code, kernel: Kernel, name: str, argument: Node, width: str) -> bool:
    """Whether a parameter keeps for ever what the launch passes, which is the width."""
    if code.source.of(argument) != width or any(code.source.of(n) == name for n in code.assigned(kernel.body)):
        return False
    found = code.variable(argument)
    return width.isdigit() or (found is not None and not code.mutated(found))
