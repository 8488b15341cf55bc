"""A loop that is left with packs of one element takes steps whose width the compiler knows.

    for (pack = threadIdx.x; pack < n / VEC; pack += blockDim.x)
                                                   ->
    for (pack = threadIdx.x; pack < n / VEC; pack += VEC > 1 ? blockDim.x : BLOCK_THREADS)

With a constant step the compiler makes four steps of one and their loads wait for memory together; with blockDim.x, which
block_extent and pack leave, it loads one element, works on it and only then asks whether there is another. Packs of more
elements stay as they are. Applies where every launch of the kernel has the same number of threads, where the spec names rows
that do not divide, and where ragged_rows did not take these already.
"""

from __future__ import annotations

from nodes.rewrites import Facts
from nodes.rewrites.algebra import Polynomial
from nodes.rewrites.device_code import Code, Kernel, Loop, code_of
from nodes.rewrites.pack import LANES
from nodes.rewrites.ragged_rows import has_ragged_rows
from nodes.rewrites.regions import BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.source import Edits, Source, Unsupported
from nodes.roles import Bound

LANGUAGES = frozenset({"cuda"})
HELPS: frozenset[Bound] = frozenset({"memory", "latency", "compute"})
EXPECTED = "rows that do not divide into packs have four elements in flight a thread instead of one"
SPEEDUP = 1.0001
ORDER = 98


def rewrite(source: Source, facts: Facts) -> str | None:
    if LANES not in source.text or not has_ragged_rows(facts.spec):
        return None
    code, edits = code_of(source), Edits(source)
    for kernel in code.kernels:
        try:
            width = _width(code, kernel)
        except Unsupported:
            continue
        for loop in thread_loops(kernel):
            pack = _pack_length(kernel, loop)
            if pack is not None and loop.step_node is not None:
                edits.replace(loop.step_node, f"{pack} > 1 ? blockDim.x : {width}")
    try:
        return edits.apply() if edits.changes else None
    except Unsupported:
        return None


def _width(code: Code, kernel: Kernel) -> str:
    """The number or macro that is the number of threads in every launch. Raises Unsupported where there is none, or where a
    kernel for ragged rows has no packs of one left to speak of."""
    if any("RAGGED" in name for name in kernel.template_names):
        raise Unsupported("ragged rows have packs of their own")
    shapes = {launch.extents(launch.block) for launch in kernel.launches}
    (shape, *more) = shapes or {("", "", "")}
    if more or shape[1:] != ("1", "1") or not (shape[0].isdigit() or shape[0] in code.macros):
        raise Unsupported("a width that is not the same everywhere")
    return shape[0]


def _pack_length(kernel: Kernel, loop: Loop) -> str | None:
    """The template parameter that is the length of the packs of one row, of which each thread takes every so manieth."""
    source, bound = kernel.source, loop.bound_node
    if loop.start != Polynomial.symbol(THREAD) or loop.step != Polynomial.symbol(BLOCK_DIM):
        return None
    if bound.type != "binary_expression" or source.of(bound.child_by_field_name("operator")) != "/":
        return None
    length = source.of(bound.child_by_field_name("right"))
    return length if length in kernel.template_names else None
