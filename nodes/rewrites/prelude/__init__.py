"""CUDA and C++ that rewrites bring along: what belongs together is a file of this folder that compiles by itself."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from compiler.cuda import CUDA

FOLDERS = (Path(__file__).parent, CUDA)
"""The second one has what the compiler's texts call too."""


@cache
def _whole(name: str, ending: str) -> str:
    path = next((f / f"{name}{ending}" for f in FOLDERS if (f / f"{name}{ending}").exists()), FOLDERS[0] / name)
    return path.read_text()


def text_of(name: str, ending: str = ".cuh") -> str:
    """The definitions of a file, without the includes at its head."""
    return _whole(name, ending).partition("\n\n")[2]


def needs_of(name: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The headers that a file of CUDA includes at its head, and the files of the folder."""
    head = _whole(name, ".cuh").partition("\n\n")[0]
    return tuple(re.findall("<(.+)>", head)), tuple(re.findall(r'"(.+)\.cuh"', head))
