"""Rows that are longer than a grid, or more: ways that small sizes take only where the host's numbers are changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import catalog
from nodes.rewrites import Facts
from tests.nodes.rewrites.steps import H200, check, where_they_apply

SILU = catalog.load("silu_and_mul")
LIMIT, COVERED, HIGH = "cuts = slices < 65535 ? slices : 65535", "cuts * along >= steps", "high / 65536 + 1"


def test_rows_longer_or_more_than_a_grid_are_computed_too(tmp_path: Path) -> None:
    """With a grid of at most two slices packs fit it, single elements of long rows do not; one of a few blocks in y goes on in z."""
    text, facts = SILU.baseline("cuda", "production")[1].read_text(), Facts(spec=SILU.spec, device=H200)
    steps = "trim_vector_tail restrict_pointers fast_math vectorize grid_stride drop_grid_stride_loop"
    text = where_they_apply(text, steps, facts=facts)
    assert "kOneStep" in text and text.count(LIMIT) == text.count(COVERED) == text.count(HIGH) == 1
    small = text.replace(LIMIT, "cuts = slices < 2 ? slices : 2").replace(HIGH, "high / 4 + 1")
    sizes = (
        "float16:tokens=3,hidden=1021",
        "float16:tokens=2,hidden=8200",
        "float32:tokens=5,hidden=12",
        "float16:tokens=37,hidden=264",
    )
    check(small, tmp_path, SILU.folder, "0", "1", *sizes)
    with pytest.raises(AssertionError, match="values wrong"):
        check(small.replace(COVERED, "true"), tmp_path, SILU.folder, "0", "1", *sizes)
