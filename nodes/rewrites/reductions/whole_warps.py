"""Blocks as wide as their row become whole warps: the threads that are new have no elements.

dim3 block(std::min(n, 1024));    ->    dim3 block(std::min((n + 31) / 32 * 32, 1024));
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.analysis.block_shape import whole_warps
from nodes.rewrites.analysis.device_code import Code, Definition, inside
from nodes.rewrites.analysis.kernels import Kernel
from nodes.rewrites.analysis.launches import Launch
from nodes.rewrites.analysis.regions import BLOCK_DIM, THREAD, thread_loops
from nodes.rewrites.reductions.shares import check_share, is_leaders
from nodes.rewrites.syntax.match import match
from nodes.rewrites.syntax.source import Edits, Unsupported
from nodes.rewrites.syntax.tree import children_of, field_of, same


def round_up(edits: Edits, code: Code, kernel: Kernel, reduction: Node, reduced: Definition, kind: str) -> None:
    """Rounds the width of every launch of the kernel up that may not be whole warps. Raises Unsupported where a thread without elements
    would change anything, or where a width has another form. `reduction`: the call that joins what each thread made of its
    elements."""
    launches = [launch for launch in kernel.launches if not whole_warps(code, kernel, launch.block)]
    if launches:
        _check_idle(code, kernel, reduction, reduced, kind)
    for launch in launches:
        _round(edits, code, kernel, launch)


def _check_idle(code: Code, kernel: Kernel, reduction: Node, reduced: Definition, kind: str) -> None:
    """Threads only take their share of loops, and join it: one that has none joins nothing."""
    source, loops = code.source, thread_loops(kernel)
    for helper in kernel.helpers:
        if any(source.of(n) in {"threadIdx", "blockDim"} for n in source.walk(helper, "identifier")):
            raise Unsupported("a helper that asks which thread it is")
    for node in source.walk(kernel.body, "identifier", "field_expression"):
        value = code.polynomial(node)
        if value.only == BLOCK_DIM:
            step = any(loop.step_node is not None and inside(node, loop.step_node) for loop in loops)
            if not (step or inside(node, reduction) or _is_alias(node)):
                raise Unsupported("a width that means more than a step")
        elif value.only == THREAD:
            start = any(inside(node, loop.start_node) for loop in loops)
            if not (start or _is_alias(node) or _asks_for_first(code, node)):
                raise Unsupported("a thread's place that means more than its share")
    if kind != "sum" or reduced.value is None:
        raise Unsupported("a share that may not begin with nothing")
    check_share(code, kernel, children_of(reduction, "arguments")[0], reduction)
    for access in kernel.global_accesses():
        if not any(inside(access.node, loop.node) for loop in loops) and not is_leaders(code, access.node):
            raise Unsupported("an element that every thread asks for")


def _is_alias(node: Node) -> bool:
    """`const int tid = threadIdx.x;`"""
    parent = node.parent
    return parent is not None and parent.type == "init_declarator" and same(field_of(parent, "value"), node)


def _asks_for_first(code: Code, node: Node) -> bool:
    form = match(code.source, node.parent, "$a == $b")
    return form is not None and any(code.polynomial(form[side]).value == 0 for side in "ab")


def _round(edits: Edits, code: Code, kernel: Kernel, launch: Launch) -> None:
    """`dim3 block(std::min(n, 1024));`, which nothing but launches of the kernel asks for."""
    source, found = code.source, code.variable(launch.block)
    if found is None or found.kind != "local" or code.mutated(found) or launch.extents(launch.block)[1:] != ("1", "1"):
        raise Unsupported("a width that may be another")
    if not all(any(inside(use, o.block) for o in kernel.launches) for use in code.uses(found, source.root)):
        raise Unsupported("a width that others ask for")
    form = match(source, launch.along_x(launch.block), "$min($a, $b)")
    if form is None or source.of(form["min"]).partition("<")[0].removeprefix("std::") != "min":
        raise Unsupported("a width of another form")
    side, most = form["a"], code.polynomial(form["b"]).value
    if side.type != "identifier" or most is None or most % 32 or most > 1024:
        raise Unsupported("a width of another form")
    if not any(change[:2] == (side.start_byte, side.end_byte) for change in edits.changes):
        edits.replace(side, f"({source.of(side)} + 31) / 32 * 32")
