"""What drafting a module comes to."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from .sources import Native

TILES = {
    "halves": "matrix products of our own: on a GPU each float32 as two halves, with a power of two for each row and column, as exact as float32",
    "conv": "convolutions in tiles of our own: on a GPU on tensor cores, operands rounded to 11 bits where torch's default lets cuDNN do so",
    "": "matrix products in tiles of our own: on a GPU on TF32 tensor cores, each float32 as two numbers, as exact as float32",
}
"""What is said of products that are kernels, by how the operator's name begins."""


@dataclass(frozen=True)
class Drafted:
    """A candidate's text, and its kernels one by one."""

    source: str
    natives: list[Native]
    rules: list[tuple[str, str]]
    """Rules of algebra.py that applied, each with the first sentence of its algebra."""
    libraries: list[str]
    """Operators that stay calls of torch."""
    tiles: list[str]
    """Operators that became tiles of our own."""

    def answer(self) -> dict[str, Any]:
        """What is written for the drafter's node."""
        said = [next(text for begin, text in TILES.items() if name.startswith(begin)) for name in self.tiles]
        notes = list(dict.fromkeys(said)) + [
            f"{name.replace('_', ' ')}: {why}" for name, why in dict.fromkeys(self.rules)
        ]
        if self.libraries:
            counts = Counter(self.libraries)
            notes.append(
                "left to torch: " + ", ".join(f"{name} x {n}" if n > 1 else name for name, n in counts.items())
            )
        kernels = []
        for native in self.natives:
            first = self.source[: self.source.index(native.text)].count("\n") + 1
            last = first + native.text.rstrip("\n").count("\n")
            kernels.append({"name": native.name, "summary": native.summary, "first_line": first, "last_line": last})
        return {"source": self.source, "notes": notes, "kernels": kernels}
