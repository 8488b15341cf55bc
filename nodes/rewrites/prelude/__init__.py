"""CUDA and C++ that rewrites bring along: what belongs together is a file of this folder that compiles by itself."""

from __future__ import annotations

from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def text_of(name: str, ending: str = ".cuh") -> str:
    """The definitions of a file, without the includes at its head, which are there to compile it alone. Smallest values are
    made of largest ones: `block_min` of `block_max.cuh`."""
    if name.endswith("_min"):
        return text_of(f"{name.removesuffix('_min')}_max").replace("max", "min").replace("largest", "smallest")
    return (FOLDER / f"{name}{ending}").read_text().partition("\n\n")[2]
