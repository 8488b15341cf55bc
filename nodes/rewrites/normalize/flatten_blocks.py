"""Blocks of two dimensions whose threads are counted through become blocks of one.

    const int thread = threadIdx.x + threadIdx.y * blockDim.x;          const int thread = threadIdx.x;
    if (threadIdx.x == 0) sums[threadIdx.y] = v;                ->      if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = v;
    norm<<<rows, dim3(32, 8)>>>(x, y, n);                               norm<<<rows, 32 * 8>>>(x, y, n);

Changes nothing by itself (threads keep their warps and lanes), but other steps know a block's threads by `threadIdx.x`. Applies to
files whose kernels all have blocks of one known width along x, and only where a kernel counts its threads so: rows that are
shared out by `threadIdx.y` are understood as they are.
"""

from __future__ import annotations

from tree_sitter import Node

from harness.records import Outcome
from nodes.rewrites.analysis.block_shape import extent_of
from nodes.rewrites.analysis.device_code import Code, code_of
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD
from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.algebra import Polynomial, Symbol
from nodes.rewrites.syntax.insert import as_factor
from nodes.rewrites.syntax.source import Edits, Source, Unsupported, inside


@rule(
    "cuda",
    expected="nothing by itself: later steps see one row of threads",
    normalizes=True,
    after=("inline_device_functions",),
    risks=(Outcome.INCORRECT,),
)
def rewrite(source: Source, facts: Facts) -> str | None:
    code, edits = code_of(source), Edits(source)
    width = _width(code)
    found = list(_counted(code, width))
    if not any(text == "threadIdx.x" for _, text in found):
        return None
    for node in source.walk(None, "field_expression"):
        text = {
            "threadIdx.x": f"(threadIdx.x % {width})", "threadIdx.y": f"(threadIdx.x / {width})",
            "blockDim.x": f"{width}u", "blockDim.y": f"(blockDim.x / {width})",
        }.get(source.of(node))  # fmt: skip
        if text is not None and not any(inside(node, whole) for whole, _ in found):
            found.append((node, text))
    for node, text in found:
        edits.replace(node, text)
    for launch in (launch for kernel in code.kernels for launch in kernel.launches):
        height = launch.extents(launch.block)[1]
        if launch.block.type == "identifier" and not (height.isdigit() or height in code.macros):
            height = f"{source.of(launch.block)}.y"  # what it was made of may have changed
        edits.replace(launch.block, f"{width} * {as_factor(height)}")
    return edits.apply()


def _width(code: Code) -> int:
    """Of the blocks of all kernels along x. Raises Unsupported where it is not known, or blocks are of another shape."""
    found = set()
    for kernel in code.kernels:
        if not kernel.launches:
            raise Unsupported("a kernel that nothing in sight launches")
        for launch in kernel.launches:
            _, y, z = launch.extents(launch.block)
            if z != "1" or y == "1":
                raise Unsupported("blocks of one dimension, or of three")
            found.add(extent_of(code, kernel, launch.along_x(launch.block)))
    width = found.pop() if len(found) == 1 else None
    asked = [n for n in code.source.walk(None, "identifier") if code.source.of(n) in {"threadIdx", "blockDim"}]
    whole = any(n.parent is None or n.parent.type != "field_expression" for n in asked)
    if width is None or whole or {"threadIdx", "blockDim"} & code.words_of_macros:
        raise Unsupported("blocks of different widths, or threads that are counted out of sight")
    return width


def _counted(code: Code, width: int) -> list[tuple[Node, str]]:
    """Expressions that are a thread's number in its block, or how many there are, outermost ones."""
    known, found = Polynomial.constant(width), list[tuple[Node, str]]()
    thread, along, y, height = (
        Polynomial.symbol(s) for s in (THREAD, BLOCK_DIM, Symbol("threadIdx.y"), Symbol("blockDim.y"))
    )
    meanings = {thread + y * along: "threadIdx.x", thread + y * known: "threadIdx.x", along * height: "blockDim.x",
                known * height: "blockDim.x"}  # fmt: skip
    for node in code.source.walk(None, "binary_expression"):
        meaning = meanings.get(code.polynomial(node)) if not any(inside(node, whole) for whole, _ in found) else None
        if meaning is not None:
            found.append((node, meaning))
    return found
