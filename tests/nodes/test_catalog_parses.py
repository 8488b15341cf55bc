"""The catalog's own sources stay within what the grammar understands, so that every rewrite may work on all of them."""

import pytest

from kernels import catalog
from nodes.rewrites.syntax.source import Source

SOURCES = [
    path
    for name in catalog.names()
    for pattern in ("baseline*.cu", "baseline*.cpp")
    for path in sorted((catalog.FOLDER / name).glob(pattern))
]


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(catalog.FOLDER)))
def test_parses_without_an_error_node(path):
    source = Source(path.read_text(), "cuda" if path.suffix == ".cu" else "cpu")
    unclear = [node for node in source.walk() if node.type == "ERROR" or node.is_missing]
    assert not unclear, [f"line {node.start_point[0] + 1}: {source.of(node)[:60]}" for node in unclear]
