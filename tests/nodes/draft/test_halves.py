"""Float32 products by halves, thread by thread on the CPU: right at odd sizes, and as near to the exact result as float32's own."""

import shutil

import pytest
import torch

from compiler.draft import algebra, lower_products
from tests.nodes.draft.direct import native_source, problem, spilled
from tests.nodes.draft.test_tiles import AS_IT_IS, check, models, one_part, source_of

MISSING = ("__CUDA_ARCH_FEAT_SM90_ALL", "MISSING")
BELOW = ("__CUDA_ARCH__ >= 800", "false")


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setattr(lower_products, "parts_by_halves", one_part)


PRODUCTS = problem(
    # operands along K and across it; beyond a tile; a batch of either side, of one; a single step; an index that is divided
    "return x @ y, y.t() @ x.t(), torch.bmm(z, z.transpose(1, 2)), z @ y[:52, :9], x[:, :1] @ y[:1], z.permute(1, 0, 2).reshape(42, 52) @ y[:52]",
    "[torch.randn(133, 70), torch.randn(70, 140), torch.randn(3, 14, 52)]",
)
EXPRESSIONS = problem(
    "return F.linear(torch.relu(x) * 2, self.weight, self.bias), (x + 1)[::2] @ self.weight.t()", "[torch.randn(2, 5, 36)]",
    "self.weight = nn.Parameter(torch.randn(23, 36))\nself.bias = nn.Parameter(torch.randn(23))",
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "changes"),
    [(PRODUCTS, []), (EXPRESSIONS, []), (EXPRESSIONS, [MISSING]), (EXPRESSIONS, [MISSING, BELOW])],
    ids=["products", "by warp groups", "by warps", "by plain multiply-adds"],
)
def test_emulated_products_by_halves_agree_with_eager(text, changes, tmp_path):
    native = native_source(source_of(text), "cuda")
    assert "multiply_halves(" in native and "multiply_tiles" not in native
    assert "prepare_along(" in native
    check(text, tmp_path, *changes)


def test_no_block_prepares_what_another_one_did(tmp_path):
    """A block has eight short places: one whose first is beyond the last would spoil that."""
    told = ("largest[place] = most;", "largest[place] = mine < places + each ? most : 0x7f000000;")
    check(problem("return x @ y.t()", "[torch.randn(133, 70), torch.randn(9, 70)]"), tmp_path, told)


def test_blocks_share_a_depth(tmp_path, monkeypatch):
    """A weight's lines are the same for all parts; what is computed has its own in each."""
    monkeypatch.setattr(lower_products, "parts_by_halves", lambda *_: 3)
    text = problem(
        "return self.linear(x), x[0] @ y",
        "[torch.randn(2, 65, 96), torch.randn(96, 133)]",
        "self.linear = nn.Linear(96, 40)",
    )
    source = source_of(text)
    assert (
        "stages_of(32)" in native_source(source, "cuda") and "halves_of(self.linear.weight.reshape(40, 96))" in source
    )
    check(text, tmp_path)


WEIGHTS = problem(
    # along K and across it, rows of zeros, of very small and very large numbers; the same weight twice
    "return self.linear(x), x @ self.weight, x[:3] @ self.linear.weight.t()", "[torch.randn(9, 70)]",
    "self.linear = nn.Linear(70, 23, bias=False)\nself.weight = nn.Parameter(torch.randn(70, 130))\n"
    "self.linear.weight.data[:, :] *= 10.0 ** torch.arange(-35, 34, 3)[:, None]\nself.linear.weight.data[5] = 0",
)  # fmt: skip


def test_weights_are_prepared_by_the_constructor(tmp_path):
    source = source_of(WEIGHTS)
    native = native_source(source, "cuda")
    assert source.count(" = halves_of(") == 3 and "_right(" not in native and native.count("_left(") == 3
    reference, eager, new = models(WEIGHTS, tmp_path, AS_IT_IS)
    (x,) = reference.get_inputs()
    with torch.no_grad():
        for ours, theirs in zip(new(x), eager.double()(x.double()), strict=True):
            assert ((ours.double() - theirs).abs() <= 1e-6 * theirs.abs().amax(0)).all()


@pytest.mark.parametrize("triangle", ["triu", "tril"])
def test_tiles_beyond_a_triangle_are_left_out(triangle, tmp_path, monkeypatch):
    monkeypatch.setattr(algebra, "SMALLEST_PANELS", 1)
    text = problem(f"return torch.{triangle}(x @ y)", "[torch.randn(290, 33), torch.randn(33, 290)]")
    native = native_source(source_of(text), "cuda")
    assert "<= first_row) continue;" in native or "<= first_column) continue;" in native
    check(text, tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc was not found")
@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90a"])
def test_products_by_halves_compile_and_keep_their_sums_in_registers(architecture, tmp_path):
    found = spilled(native_source(source_of(PRODUCTS), "cuda"), architecture, tmp_path)
    assert len(found) >= 10 and not any(found), found
