"""Drafts whose neighbouring elements are loaded at once, thread by thread on the CPU: as eager, aligned or not."""

from __future__ import annotations

import ctypes
import re
from pathlib import Path

import pytest
import torch

from compiler import draft
from compiler.draft import block_groups, kept
from compiler.draft.names import RESERVED
from tests.nodes.draft.direct import (
    _close,
    _leaves,
    check_group,
    emulated,
    groups,
    module,
    native_source,
    problem,
    together,
)
from tests.nodes.rewrites.emulate import emulation

ROWS = "torch.randn(6, 256) * 3"
IMAGE = "torch.randn(2, 3, 8, 16)"
MODULES = {
    "chain": problem("return torch.tanh(F.gelu(x) * 2 + y) / (1 + x.abs())", f"[{ROWS}, torch.randn(256)]"),
    "channels": problem("return F.relu(x + y), (x * y).sum(dim=1)", f"[{IMAGE}, torch.randn(3, 1, 1)]"),
    "a sum over the first axis": problem("return x.sum(dim=0) * 2, x.mean(dim=1)", "[torch.randn(70, 160)]"),
    "softmax": problem("return x.softmax(dim=-1), x.log_softmax(dim=-1)", "[torch.randn(5, 1152) * 3]"),
    "norm of what is costly": problem(
        "return self.norm(F.mish(x)), F.group_norm(F.mish(y), 2)", "[torch.randn(5, 256), torch.randn(2, 4, 16, 20)]",
        "self.norm = nn.LayerNorm(256)",
    ),
    "rows in pieces": problem(
        # of a channel in all images; of a group of channels, with a number for each; a remainder that a pack lies in
        "return x - x.mean(dim=(0, 2, 3), keepdim=True), F.group_norm(x + y, 1), torch.relu(x.permute(1, 0, 2, 3) * x[0, 0])",
        "[torch.randn(2, 3, 8, 16), torch.randn(3, 1, 1)]",
    ),
    "a norm that learns": problem("return F.relu6(self.norm(x))", f"[{IMAGE}]", "self.norm = nn.BatchNorm2d(3)"),
    "places": problem(
        # rows and columns of nothing but the lowest, and with a NaN
        "return x.argmax(dim=1), x.max(dim=1).values, x.argmin(dim=1), y.argmax(dim=0), y.argmin(dim=0)",
        f"[torch.cat([{ROWS}, torch.full((2, 256), -torch.inf), torch.full((1, 256), torch.nan)]),"
        f" torch.cat([torch.full((300, 1), torch.inf), torch.randn(300, 2), torch.full((300, 20), -torch.inf)], dim=1)]",
    ),
    "doubles and numbers": problem("return x.double() * y + 1, (x * y).sum(dim=1)", f"[{ROWS}, torch.randint(0, 9, (6, 256))]"),
    "scans": problem(
        "return x.cumsum(dim=1) * 2, y.cumprod(dim=1), x.flip(1).cumsum(dim=1).flip(1)",
        "[torch.randn(3, 1184), torch.rand(3, 40) + 0.5]",
    ),
    "scans of several steps": problem(
        # what is behind the scan reads a pack of that step, not of the one that is loaded meanwhile
        "return (x * y).cumsum(dim=1) + x, x.flip(1).cumsum(dim=1).flip(1), z.cumsum(dim=1),"
        " torch.cat((torch.zeros_like(x[:, :1]), torch.cumsum(x[:, :-1], dim=1)), dim=1)",
        "[torch.randn(2, 9472), torch.rand(2, 9472) < 0.5, torch.randn(2, 9001)]",
    ),
    "columns that are shared": problem(
        "return x.sum(dim=1), x.argmax(dim=1), F.softmax(x, dim=1), x.cumsum(dim=1)", "[torch.randn(2, 300, 37)]"
    ),
    "some of it shifted": problem("return x[1:] + x[:-1] + y", f"[{ROWS}, torch.randn(5, 256)]"),
}  # fmt: skip
LONG_ROWS = {
    "two inputs": (
        # one of them is needed at once only by what the other takes part in; a norm with weights
        problem(
            "return x.softmax(dim=-1), (x * y).softmax(dim=-1) + x, self.norm(x), x / (x * y).sum(dim=1, keepdim=True)",
            "[torch.randn(3, 2601) * 3, torch.randn(3, 2601)]", "self.norm = nn.LayerNorm(2601)",
        ), 4,
    ),
    "norms": (problem("return x / x.norm(dim=1, keepdim=True), x.log_softmax(dim=1)", "[torch.randn(3, 2049)]"), 2),
    "halves": (problem("return x.softmax(dim=1)", "[torch.randn(2, 2601).half()]"), 1),
}  # fmt: skip
"""Each with the blocks of its clusters."""
NOT = {
    "odd rows": problem("return x * 2, x.sum(dim=1)", "[torch.randn(5, 37)]"),
    "guarded": problem("return F.pad(x, (4, 0))", f"[{ROWS}]"),
    "scanned backwards": problem("return x.flip(1).cumsum(dim=1).flip(1)", f"[{ROWS}]"),
    "in pieces that packs do not fit": problem("return x.sum(dim=(0, 2))", "[torch.randn(6, 3, 90)]"),
    "transposed": problem("return (x * 1.5).t().contiguous()[:, :5]", f"[{ROWS}]"),
}


def moved(x: torch.Tensor) -> torch.Tensor:
    """The same one element further in memory than an allocation begins."""
    wide = torch.empty(x.numel() + 1, dtype=x.dtype)
    wide[1:] = x.reshape(-1)
    return wide[1:].view(x.shape)


@pytest.mark.parametrize("names", groups(MODULES, ()), ids=" | ".join)
def test_packs_agree_with_eager_aligned_or_not(names: tuple[str, ...], tmp_path: Path) -> None:
    def packed(text: str) -> None:
        source = draft.draft(text, "cuda")
        native = native_source(source, "cuda")
        assert any(word in native for word in ("load_pack<Items>(", "load_word<", "column_fold("))
        check_names(native)
        check(text, source, emulation.library(native, tmp_path))

    check_group(MODULES, names, packed)


def check(text: str, source: str, built: ctypes.CDLL) -> None:
    """Eager beside the draft, with inputs that are aligned and with inputs that are not."""
    reference, new = module(text), emulated(source, built)
    torch.manual_seed(0)
    inputs = reference.get_inputs()
    eager, ours = reference.Model(), new.ModelNew()
    exact = [_leaves(eager.double()(*[x.double() if x.is_floating_point() else x for x in inputs]))]
    theirs = _leaves(eager.float()(*inputs))
    for given in (inputs, [moved(x) for x in inputs]):
        for mine, other, right in zip(_leaves(ours(*given)), theirs, *exact, strict=True):
            _close(mine, other, right)


def test_what_does_not_lie_side_by_side_is_not_packed() -> None:
    kernels = native_source(draft.draft(together(NOT.values()), "cuda"), "cuda").split("\n// ")
    assert len(kernels) > len(NOT) and not [kernel for kernel in kernels if "Pack" in kernel]


@pytest.mark.parametrize(("dtype", "items"), [("float16", 8), ("bfloat16", 8)])
def test_a_pack_is_sixteen_bytes(dtype: str, items: int) -> None:
    native = native_source(draft.draft(MODULES["chain"], "cuda", dtype), "cuda")
    assert f"_kernel<{items}, int>" in native and "_kernel<1, int>" in native


DECLARED = re.compile(r"\b(?:T|float|double|int|bool|int64_t|Index|dim3) (\w+)(?= =|;|\[|\()")
NAMED = re.compile(r"(?:struct(?: alignas\(.*\))?|__ [\w<>, ]+) (\w+)(?=\(| \{)|int (\w+)[,>]")


def check_names(native: str) -> None:
    """No input hides a name of the text around it."""
    kernels = native[native.index("__global__") :]
    words = {*DECLARED.findall(kernels), *(one or other for one, other in NAMED.findall(native))} - {
        "column"
    }  # which gives way
    ours = {word for word in words if not re.search(r"\d$", word) and not word.startswith(("own_", "__"))}
    assert {"Pack", "Items", "item", "load_pack"} <= ours or {"partial", "column_fold"} <= ours
    assert ours <= RESERVED, sorted(ours - RESERVED)


@pytest.mark.parametrize("name", LONG_ROWS)
def test_rows_that_a_cluster_keeps_agree_with_eager(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster, and what is launched where there are none."""
    for number, value in (("ROW_BYTES", 1), ("BLOCK_BYTES", 6 << 10), ("THREADS", 64)):
        monkeypatch.setattr(kept, number, value)
    text, blocks = LONG_ROWS[name]
    source = draft.draft(text, "cuda")
    native = native_source(source, "cuda")
    assert set(re.findall(r"_kernel<(\d+)>", native)) == {str(blocks), "0"}
    assert ("kept2[slot]" in native) is (name == "two inputs")
    check_names(native)
    for changed in (native, native.replace("{900}", "{800}")):
        folder = tmp_path / str(changed == native)
        folder.mkdir()
        check(text, source, emulation.library(changed, folder))


GROUPED = {
    "norms": problem(
        # a number a channel within a group; rows that a block ends in the middle of
        "return F.group_norm(x, 2, self.weight), y.log_softmax(dim=1), F.normalize(y, dim=1)",
        "[torch.randn(3, 4, 24, 32) * 3, torch.randn(5, 1284)]", "self.weight = nn.Parameter(torch.arange(1.0, 5.0))",
    ),
    "two inputs": problem("return (x * y).softmax(dim=1) + x, y / (x * y).amax(dim=1, keepdim=True)", "[torch.randn(7, 1152), torch.rand(7, 1152) + 1]"),
    "halves": problem("return x.softmax(dim=1)", "[torch.randn(2, 2560).half()]"),
}  # fmt: skip


@pytest.mark.parametrize("name", GROUPED)
def test_rows_that_a_group_of_blocks_keeps_agree_with_eager(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The groups, which go through several rows each, and what is launched where a device has no room for them."""
    for number, value in (
        ("ROW_BYTES", 1),
        ("KEPT_PACKS", 4 if name == "two inputs" else 2),
        ("THREADS", 64),
        ("KINDS", {"welford", "softmax", "sum", "max"}),
    ):
        monkeypatch.setattr(block_groups, number, value)
    monkeypatch.setenv("EMULATE_MULTIPROCESSORS", "2")
    source = draft.draft(GROUPED[name], "cuda")
    native = native_source(source, "cuda")
    assert "group_fold(" in native and "torch.int32, device=device)" in source
    built = emulation.library(native, tmp_path)
    check(GROUPED[name], source, built)
    monkeypatch.setenv("EMULATE_MULTIPROCESSORS", "1")
    check(GROUPED[name], source, built)


def test_few_long_columns_take_a_block_each(tmp_path: Path) -> None:
    """What joins the parts of 16 channels' means: a thread to a channel would keep half a warp busy."""
    text = problem("return self.norm(x)", "[torch.randn(9000, 16) * 3 + 2]", "self.norm = nn.BatchNorm1d(16)")
    source = draft.draft(text, "cuda")
    native = native_source(source, "cuda")
    joins = [kernel for kernel in native.split("\n// ") if ": 16 rows of" in kernel]
    assert joins and all("warp_fold(" in kernel for kernel in joins)
    check(text, source, emulation.library(native, tmp_path))
