"""The catalog's sources and what the compiler puts in front of its texts stay within what the grammar understands, so that every
rewrite, and what puts two forms in one file, may work on all of them."""

from pathlib import Path

import pytest

import compiler
from kernels import catalog
from nodes.rewrites.syntax.source import Source

SOURCES = [
    path
    for name in catalog.names()
    for pattern in ("baseline*.cu", "baseline*.cpp")
    for path in sorted((catalog.FOLDER / name).glob(pattern))
]
PRELUDES = [path for pattern in ("cuda/*.cuh", "cpu/*.h") for path in sorted(Path(compiler.__path__[0]).glob(pattern))]


@pytest.mark.parametrize("path", [*SOURCES, *PRELUDES], ids=lambda path: f"{path.parent.name}/{path.name}")
def test_parses_without_an_error_node(path):
    source = Source(path.read_text(), "cuda" if path.suffix.startswith(".cu") else "cpu")
    unclear = [node for node in source.walk() if node.type == "ERROR" or node.is_missing]
    assert not unclear, [f"line {node.start_point[0] + 1}: {source.of(node)[:60]}" for node in unclear]
