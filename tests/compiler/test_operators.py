"""Operators one by one: those of C's mathematics, those that are made of others, and sizes that a shift or a window does not divide."""

from __future__ import annotations

import pytest

from compiler.compile import source
from tests.compiler.folders import check_text, folder_of, made

OPERATORS = {
    "of C's mathematics": """\
    small = x.tanh() * 0.9
    y = x.abs().log10() + small.tan() + x.sinh() * x.cosh() + small.asin() + small.acos() + x.asinh() + small.atanh()
    y = y + (1 + x.abs()).acosh() + (1 + x.abs()).lgamma()
""",
    "that ask": """\
    z = x / (x - x[:, :1])
    y = torch.isinf(z) + 2 * torch.isfinite(z) + 4 * torch.isposinf(z) + 8 * torch.isneginf(z) + 16 * torch.logical_xor(x > 0, w > 0)
""",
    "made of others in place": """\
    y = F.rms_norm(x, x.shape[1:], None, 1e-5) + F.cosine_similarity(x, w)[:, None] + x.nanmean(1, keepdim=True) + torch.isclose(x, w)
    y = y + torch.var_mean(x, 1, keepdim=True, correction=0)[0] * torch.std_mean(w, 1, False, True)[1]
""",
    "turned, and windows that do not divide": """\
    y = x.roll(5, 1) - x.roll(-3, 1) + x.roll((2, -1), (0, 1)) + F.adaptive_avg_pool1d(x[:, None], 3).sum(-1)
    y = y + F.adaptive_max_pool2d(x[:, None, None].expand(-1, 1, 5, -1), (2, 4)).sum((2, 3))
""",
}


@pytest.mark.parametrize("operators", OPERATORS)
def test_each_is_what_torch_makes(operators, tmp_path):
    """In C++, whose compiler warns of nothing."""
    spec = made(
        [{"n": 5, "m": 37}, {"n": 1, "m": 1}, {"n": 2, "m": 16}], tensors={"x": "in n m", "w": "in n m", "y": "out n m"}
    )
    reference = f"import torch\nimport torch.nn.functional as F\n\n\ndef reference(x, w):\n{OPERATORS[operators]}    return {{'y': y}}\n"
    check_text(
        folder_of(tmp_path, spec, reference), source(spec, reference, device="cpu"), tmp_path, "cpu", offsets=(0,)
    )


def test_groups_of_an_open_size_have_a_spread():
    """Whose length is estimated while it is lowered, long as it is."""
    spec = made(
        [{"n": 2, "c": 320, "h": 64, "w": 64}], devices=("cuda",), tensors={"x": "in n c h w", "y": "out n c h w"}
    )
    reference = "def reference(x):\n    g = x.reshape(x.shape[0], 32, -1)\n    return {'y': (g - g.mean(-1, keepdim=True) * g.var(-1, keepdim=True)).reshape(x.shape)}\n"
    assert source(spec, reference)


def test_tensors_may_be_called_as_the_text_calls_its_parts(tmp_path):
    spec = made([{"n": 5, "m": 37}], devices=("cpu",), tensors={"x": "in n m", "v1": "out n m", "v2": "out n m"})
    reference = "def reference(x):\n    t = x.tanh()\n    return {'v1': t * t + t, 'v2': t / (1 + t.abs())}\n"
    check_text(folder_of(tmp_path, spec, reference), source(spec, reference, device="cpu"), tmp_path, "cpu")
