"""CUDA and C++ that rewrites bring along: what belongs together is a file of this folder that compiles by itself."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from compiler.cuda import CUDA
from nodes.rewrites.syntax.source import Source

FOLDERS = (Path(__file__).parent, CUDA)
"""The second one has what the compiler's texts call too."""
NAMES = ("block_max", "block_min", "block_sum")
"""Reductions over a block of whole warps."""


@cache
def _whole(name: str, ending: str) -> str:
    """A file. Smallest values are made of largest ones, `block_min` of `block_max.cuh`, and these of sums where they have no file,
    `warp_max` of `warp_sum.cuh`."""
    if name.endswith("_min"):
        return _whole(f"{name.removesuffix('_min')}_max", ending).replace("max", "min").replace("largest", "smallest")
    path = next((f / f"{name}{ending}" for f in FOLDERS if (f / f"{name}{ending}").exists()), FOLDERS[0] / name)
    if name.endswith("_max") and not path.exists():
        sums = _whole(f"{name.removesuffix('_max')}_sum", ending)
        text = re.sub(r"value \+= (.*);", r"value = max(value, \1);", sums)
        return text.replace("_sum", "_max").replace("The sum", "The largest value").replace(": V(0)", ": of_warp[0]")
    return path.read_text()


def text_of(name: str, ending: str = ".cuh") -> str:
    """The definitions of a file, without the includes at its head."""
    return _whole(name, ending).partition("\n\n")[2]


def needs_of(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The headers that a file of CUDA includes at its head, and the files of the folder."""
    head = _whole(name, ".cuh").partition("\n\n")[0]
    return tuple(re.findall("<(.+)>", head)), tuple(re.findall(r'"(.+)\.cuh"', head))


def brought(source: Source) -> set[str]:
    """Reductions over a block that are in the source as canonicalize_reductions brings them, and nobody else's of that name."""
    return {name for name in NAMES if text_of(name) in source.text}


def next_site(source: Source) -> int:
    """The first SITE that no call of ours has yet."""
    return max((int(site) for site in re.findall(rf"\b(?:{'|'.join(NAMES)})<(\d+)>", source.text)), default=-1) + 1
