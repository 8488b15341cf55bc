"""CUDA and C++ that drafts' kernels call, folders' products, too: files that stand in a text as they are, and pieces.cuh, each piece behind its name."""

import re
from functools import cache
from pathlib import Path

QUALIFIERS = {"cuda": "__device__ __forceinline__", "cpu": "static inline"}
"""What DEVICE stands for in a text that both have."""


@cache
def whole(name: str, device: str = "cuda") -> str:
    return (Path(__file__).parent / name).read_text().replace("DEVICE", QUALIFIERS[device])


@cache
def pieces(device: str) -> dict[str, str]:
    return dict(re.findall(r"^//: (\S+)\n(.*?)(?=^//: |\Z)", whole("pieces.cuh", device), re.MULTILINE | re.DOTALL))
