"""Float32 products by halves, thread by thread on the CPU: right at odd sizes, and as near to the exact result as float32's own."""

import pytest
import torch

from nodes.draft import halves, lower_products
from tests.nodes.draft.direct import native_source, problem
from tests.nodes.draft.test_tiles import AS_IT_IS, DRAWS, LONG, check, errors, models, source_of

MISSING = ("__CUDA_ARCH_FEAT_SM90_ALL", "MISSING")
BELOW = ("__CUDA_ARCH__ >= 800", "false")


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setattr(lower_products, "halves_pay", lambda *_: True)


PRODUCTS = problem(
    # operands along K and across it; beyond a tile; a batch of either side, of one; a single step
    "return x @ y, y.t() @ x.t(), torch.bmm(z, z.transpose(1, 2)), z @ y[:52, :9], x[:, :1] @ y[:1]",
    "[torch.randn(133, 70), torch.randn(70, 140), torch.randn(3, 14, 52)]",
)
EXPRESSIONS = problem(
    "return F.linear(torch.relu(x) * 2, self.weight, self.bias), (x + 1)[::2] @ self.weight.t()", "[torch.randn(2, 5, 36)]",
    "self.weight = nn.Parameter(torch.randn(23, 36))\nself.bias = nn.Parameter(torch.randn(23))",
)  # fmt: skip


@pytest.mark.parametrize("text", [PRODUCTS, EXPRESSIONS], ids=["products", "of expressions"])
@pytest.mark.parametrize(
    "changes", [[], [MISSING], [MISSING, BELOW]], ids=["by warp groups", "by warps", "by plain multiply-adds"]
)
def test_emulated_products_by_halves_agree_with_eager(text, changes, tmp_path):
    native = native_source(source_of(text), "cuda")
    assert "multiply_halves(" in native and "multiply_tiles" not in native
    assert "prepare_along(" in native
    check(text, tmp_path, False, *changes)


def test_blocks_share_a_depth(tmp_path, monkeypatch):
    monkeypatch.setattr(lower_products, "SHORTEST", 8)
    text = problem("return x @ y", "[torch.randn(130, 60), torch.randn(60, 133)]")
    assert "stages_of(10)" in native_source(source_of(text), "cuda")
    check(text, tmp_path)


def test_a_product_by_halves_is_as_exact_as_float32s(tmp_path):
    """In the emulation, whose tensor cores cut off more than Hopper's do."""
    *_, new = models(LONG, tmp_path)
    for name, draw in DRAWS.items():
        ours, float32s = errors(new, draw)
        print(name, ours, float32s)
        assert ours < float32s, name
