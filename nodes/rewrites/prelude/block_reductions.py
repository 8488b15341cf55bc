"""Reductions over a block of whole warps."""

from __future__ import annotations

from nodes.rewrites.prelude import text_of
from nodes.rewrites.syntax.source import Source

HELPERS = {kind: text_of(f"block_{kind}") for kind in ("sum", "max", "min", "shifted_sum")}


def reduces(source: Source) -> bool:
    """Whether warp_shuffle_reduction's reductions are in the source at all: without them there is nothing to look for."""
    return any(helper in source.text for helper in HELPERS.values())
