"""What is known of a block's width, and its barriers."""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.device_code import Code
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launch_values import value_in
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import THREAD
from nodes.rewrites.syntax.algebra import Polynomial
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Source, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of


def extent_of(code: Code, kernel: Kernel, node: Node) -> int | None:
    """A number in a launch's shape; None where that is only known when it runs."""
    if node.type == "parameter_declaration":  # `dim3 block(WIDTH)` reads as a function
        node = field_of(node, "type") or node
    found = code.definition(node) if node.type in {"identifier", "type_identifier"} else None
    if found is not None and found.kind != "macro":
        settled = found.kind in {"local", "global"} and found.value is not None and not code.mutated(found)
        node = found.value if settled else node
    value = code.polynomial(node).value
    return value if value is not None else value_in(code, kernel, None, node)


def width_of(code: Code, kernel: Kernel, launch: Launch) -> int | None:
    """The threads of a launch's blocks, None where that is only known when it runs. Raises Unsupported for blocks of more than
    one dimension."""
    if launch.extents(launch.block)[1:] != ("1", "1"):
        raise Unsupported("a block of more than one dimension")
    try:
        return extent_of(code, kernel, launch.along_x(launch.block))
    except Unsupported:  # a shape that is assigned to
        return None


def whole_warps(code: Code, kernel: Kernel, block: Node) -> bool:
    """Whether the block is known to be a multiple of 32 threads."""
    value = extent_of(code, kernel, block)
    if value is not None:
        return value >= 32 and value % 32 == 0
    found = code.variable(block)
    if found is not None and found.value is not None and not code.mutated(found):
        return whole_warps(code, kernel, found.value)
    name, inner = code.source.called(block), children_of(block, "arguments") or children_of(block, "value")
    if name in {"min", "max"} and len(inner) == 2:
        return all(whole_warps(code, kernel, side) for side in inner)
    if name == "dim3" or block.type in {"compound_literal_expression", "argument_list", "initializer_list"}:
        first, *others = inner or children_of(block)
        return all(code.source.of(c) == "1" for c in others) and whole_warps(code, kernel, first)
    return all(c % 32 == 0 for _, c in code.polynomial(block).terms)


def is_first_thread(code: Code, condition: Node | None) -> bool:
    """`threadIdx.x == 0`, by whatever name, or `!threadIdx.x`."""
    found, zero = match(code.source, condition, "$a == $b", "!$a"), Polynomial.constant(0)
    if found is None:
        return False
    other = code.polynomial(found["b"]) if "b" in found else zero
    return {code.polynomial(found["a"]), other} == {Polynomial.symbol(THREAD), zero}


def is_barrier(source: Source, node: Node) -> bool:
    return node.type == "expression_statement" and source.of(node).replace(" ", "") == "__syncthreads();"
