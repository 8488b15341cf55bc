"""Reductions over a block of whole warps."""

from __future__ import annotations

from nodes.rewrites.prelude import text_of
from nodes.rewrites.syntax.source import Source
from nodes.rewrites.syntax.tree import children_of

NAMES = ("block_max", "block_min", "block_shifted_sum", "block_sum")


def brought(source: Source) -> set[str]:
    """Those that are in the source as canonicalize_reductions brings them, and nobody else's of that name."""
    return {name for name in NAMES if text_of(name) in source.text}


def next_site(source: Source) -> int:
    """The first SITE that no call of ours has yet."""
    taken = [-1]
    for call in source.walk(None, "template_function"):
        first, *_ = (*map(source.of, children_of(call, "arguments")), "")
        if source.of(call, "name") in NAMES and first.isdigit():
            taken.append(int(first))
    return max(taken) + 1
