"""Rows that are longer than a grid or begun anywhere: ways that small sizes take only where the host's numbers are changed."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from kernels import catalog
from nodes.rewrites import Facts
from tests.nodes.rewrites.emulate.emulation import library
from tests.nodes.rewrites.examples import VECTORS
from tests.nodes.rewrites.steps import H200, check, where_they_apply
from tests.nodes.rewrites.test_contract import behind

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


def test_every_pack_but_the_ends_moves_in_one_piece(tmp_path: Path) -> None:
    """Rows from any address, in place and not; x, y and w aligned alike and not."""
    text = behind(VECTORS["unaligned rows"])
    text = re.sub(r"in_one_piece<N>\((from|to), part\)\) \{", r"\g<0> ++pieces;", text).replace(
        ">= 4 * PACK", ">= 0 * PACK"
    )
    assert text.count("++pieces") == 2
    built = library('extern "C" { int pieces = 0; }\n' + text, tmp_path)
    pieces, rows = ctypes.c_int.in_dll(built, "pieces"), 3
    generator = torch.Generator().manual_seed(3)
    for n in (0, 1, 7, 8, 9, 15, 16, 17, 129, 257):
        for x_at, y_at in ((0, 0), (1, 1), (7, 7), (0, 3), (5, 0)):
            x, y = (torch.randn(64 + rows * n + 64, generator=generator).half() for _ in range(2))
            w = torch.randn(n + 1, generator=generator).half()
            want, before = x[x_at : x_at + rows * n].view(rows, n) + w[1:], y.clone()
            pointers = [ctypes.c_void_p(t.data_ptr() + 2 * o) for t, o in ((x, x_at), (w, 1), (y, y_at))]
            pieces.value = 0
            built.fuzz_float16(*pointers, ctypes.c_long(rows), ctypes.c_long(n), None)
            assert torch.equal(y[y_at : y_at + rows * n].view(rows, n), want), (n, x_at, y_at)
            assert torch.equal(y[:y_at], before[:y_at]) and torch.equal(y[y_at + rows * n :], before[y_at + rows * n :])
            if x_at == y_at and n % 8 and x.data_ptr() % 16 == y.data_ptr() % 16 == 0:
                begins = [x_at + row * n for row in range(rows)]
                whole = [max(0, (begin + n) // 8 - -(-begin // 8)) for begin in begins]
                of_w = sum(packs for packs, begin in zip(whole, begins, strict=True) if (1 - begin) % 8 == 0)
                assert pieces.value == 2 * sum(whole) + of_w, (n, x_at)
            built.fuzz_float16(pointers[2], pointers[1], pointers[2], ctypes.c_long(rows), ctypes.c_long(n), None)
            assert torch.equal(y[y_at : y_at + rows * n].view(rows, n), want + w[1:]), "in place"
