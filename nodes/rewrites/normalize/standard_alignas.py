"""Shared memory says in standard words what it is aligned to, for the grammar does not know CUDA's own there.

    extern __shared__ __align__(16) char bytes[];    ->    alignas(16) extern __shared__ char bytes[];

Changes nothing by itself, but a function with such a declaration is not understood at all.
"""

from __future__ import annotations

from tree_sitter import Node

from nodes.rewrites.registry import Facts, rule
from nodes.rewrites.syntax.source import Edits, Source

_WORDS = {"extern", "static", "__shared__", "volatile", "const"}


@rule("cuda", expected="nothing by itself: later steps can read the function", normalizes=True)
def rewrite(source: Source, facts: Facts) -> str | None:
    if "__align__" not in source.text:
        return None
    leaves = [n for n in source.walk() if n.child_count == 0 and n.end_byte > n.start_byte and n.type != "comment"]
    edits = Edits(source)
    for at, leaf in enumerate(leaves):
        if source.of(leaf) == "__align__":
            _move(edits, source, leaves, at)
    return edits.apply()


def _move(edits: Edits, source: Source, leaves: list[Node], at: int) -> None:
    """To the front of a declaration in shared memory; nothing happens to any other."""
    first = last = at
    while first > 0 and source.of(leaves[first - 1]) in _WORDS:
        first -= 1
    depth, end = 0, at
    while end + 1 < len(leaves):
        end += 1
        depth += {"(": 1, ")": -1}.get(source.of(leaves[end]), 0)
        if depth <= 0:
            break
    last = end
    while last + 1 < len(leaves) and source.of(leaves[last + 1]) in _WORDS:
        last += 1
    words = {source.of(leaf) for leaf in [*leaves[first:at], *leaves[end + 1 : last + 1]]}
    begins = first == 0 or source.of(leaves[first - 1]) in {";", "{", "}"}
    if "__shared__" not in words or not begins or source.of(leaves[end]) != ")" or end + 1 == len(leaves):
        return
    given = source.data[leaves[at].end_byte : leaves[end].end_byte].decode()
    edits.insert(leaves[first].start_byte, f"alignas{given} ")
    edits.changes.append((leaves[at].start_byte, leaves[end + 1].start_byte, ""))
