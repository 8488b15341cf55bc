"""Loops of a C++ candidate that count.

The order of the CPU rewrites: other people's forms come first (what is called is in the text, variables live in the loop that
uses them, what walked is indexed), then a flat loop becomes rows, passes are joined, what does not change leaves its loop or
goes into a table, calls into libm get their vector forms, rows are shared out while the loops are still plain, transposed ones are
cut into tiles, what is left is marked for the compiler's vectoriser, and vectors are written out by hand with their stores.
Any other order gives right code, if less of it.

Taken for granted, as the contract between spec and candidate says so: two pointer parameters of an entry point never
overlap, and sizes are at least 1.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache

from tree_sitter import Node

from nodes.rewrites.analysis.host_source import (
    changed_names,
    declared_names,
    enclosing_function,
    host_code,
    indentation,
    over_lanes,
)
from nodes.rewrites.analysis.kernels import Loop
from nodes.rewrites.syntax.source import Edits, Source
from nodes.rewrites.syntax.tree import LOOPS, enclosing, pragma_of, upward


def canonical(source: Source, node: Node) -> Loop | None:
    """The loop, if it counts one integer of its own upwards by a fixed step and its body does not assign it, or what it ends at."""
    return host_code(source).loop(node)


def loops(source: Source, node: Node | None = None) -> list[Loop]:
    """Every canonical loop under `node`, in source order, but for those of functions that work on lanes already."""
    found = (canonical(source, here) for here in source.walk(node, "for_statement") if not over_lanes(source, here))
    return [loop for loop in found if loop is not None]


def loops_around(source: Source, node: Node) -> list[Loop | None]:
    """The for statements around a node, outermost first; None for one that does not count."""
    around = [here for here in upward(node.parent) if here.type == "for_statement"]
    return [canonical(source, here) for here in reversed(around)]


@lru_cache(maxsize=4)
def _called_in_loops(source: Source) -> set[Node]:
    """Functions of the file that run once per iteration of something, by way of others too."""
    names = {source.called(c) for loop in source.walk(None, *LOOPS) for c in source.walk(loop, "call_expression")}
    return host_code(source).reached(*names)


def runs_again(source: Source, node: Node) -> bool:
    """Whether what stands there may run more than once for a call of the kernel, as far as the file shows."""
    return enclosing(node.parent, *LOOPS) is not None or enclosing_function(node) in _called_in_loops(source)


def loop_at(source: Source, start: int) -> Loop | None:
    """The canonical loop that starts at a byte."""
    node = enclosing(source.root.descendant_for_byte_range(start, start + 3), "for_statement")
    return canonical(source, node) if node is not None else None


def header(source: Source, loop: Loop) -> str:
    """`for (...)`."""
    return source.data[loop.node.start_byte : loop.body.start_byte].decode().strip()


def counts_from_zero(source: Source, loop: Loop) -> bool:
    """Whether it counts 0, 1, 2 and stops before its bound."""
    return loop.step_node is None and not loop.inclusive and source.of(loop.start_node) == "0"


def has_pragma(source: Source, loop: Loop) -> bool:
    return pragma_of(loop.node) is not None


def varying(source: Source, loop: Loop) -> set[str]:
    """What may differ from one iteration to another: the counter, what the body declares, what it changes."""
    return {loop.name} | declared_names(source, loop.body) | changed_names(source, loop.body)


def put_in_front(edits: Edits, loop: Loop, lines: Iterable[str]) -> None:
    """Lines in front of a loop and its pragma. Raises Unsupported where something else stands on the loop's line."""
    indent, place = indentation(edits.source, loop.node), pragma_of(loop.node) or loop.node
    edits.insert(place.start_byte, "".join(f"{line}\n{indent}" for line in lines))
