"""CUDA and C++ that rewrites bring along: what belongs together is a file of this folder that compiles by itself."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

FOLDER = Path(__file__).parent


@cache
def text_of(name: str, ending: str = ".cuh") -> str:
    """The definitions of a file, without the includes at its head, which are there to compile it alone. Smallest values are
    made of largest ones, `block_min` of `block_max.cuh`, and these of sums where they have no file, `warp_max` of `warp_sum.cuh`."""
    if name.endswith("_min"):
        return text_of(f"{name.removesuffix('_min')}_max").replace("max", "min").replace("largest", "smallest")
    if name.endswith("_max") and not (FOLDER / f"{name}{ending}").exists():
        text = re.sub(r"value \+= (.*);", r"value = max(value, \1);", text_of(f"{name.removesuffix('_max')}_sum"))
        return text.replace("_sum", "_max").replace("The sum over", "The largest value over")
    return (FOLDER / f"{name}{ending}").read_text().partition("\n\n")[2]
