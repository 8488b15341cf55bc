"""Reductions over a block of whole warps."""

from __future__ import annotations

from nodes.rewrites.prelude import text_of
from nodes.rewrites.syntax.source import Source

NAMES = ("block_sum", "block_max", "block_min", "block_shifted_sum")


def brought(source: Source) -> set[str]:
    """Those that are in the source as warp_shuffle_reduction brings them, and nobody else's of that name."""
    return {name for name in NAMES if text_of(name) in source.text}
