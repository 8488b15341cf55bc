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
    y = y + F.adaptive_max_pool2d(x[:, None, None].expand(-1, 1, 5, -1), (2, 4)).sum((2, 3)) + x.roll(1)
""",
    "of two numbers": """\
    some = torch.where(w > 0, w, float("nan"))
    y = torch.hypot(x, w) + torch.fmax(x, some) + torch.fmin(some, x) + x // w + torch.div(x, w * 0.1, rounding_mode="trunc")
    y = y + torch.round(x, decimals=2) + torch.round(x * 100, decimals=-1) + torch.signbit(x - x[:, :1]) + torch.ldexp(x, i) + x.dist(w, 3)
    y = y + ~i + i**2 + i**3 + torch.div(i, 3, rounding_mode="trunc") + torch.div(i, -4, rounding_mode="floor")
""",
    "special functions": """\
    mantissa, exponent = torch.frexp(x * x * x)
    y = torch.erfinv(x.tanh() * 0.9) + torch.digamma(x.abs() + 0.5) + torch.i0(x) + torch.special.i0e(x * 4) + torch.special.i1(x * 2)
    y = y + torch.special.i1e(x * 4) + mantissa * exponent + torch.linspace(-1, 2, x.shape[1], device=x.device)
""",
    "norms, distances, places": """\
    y = x.norm(3, 1, True) + x.norm(0, 1, True) + x.norm(float("-inf"), 1, True) + torch.cdist(x, w).sum(1, True) + F.pdist(x, 1).sum()
    values, places = w.round().cummax(1)
    y = y + values * places + x.index_copy(0, torch.arange(x.shape[0], device=x.device), w) + x.round().mode(1, True).values
    y = y + torch.where(w > 0, w, float("nan")).nanmedian(1, True).values.nan_to_num(5) + F.gaussian_nll_loss(x, w, w * w, reduction="none")
""",
    "small matrices": """\
    a = torch.stack([x, w, w, x + 3], -1).unflatten(-1, (2, 2))
    b = a @ a.mT + torch.eye(2, device=x.device)
    y = torch.linalg.det(b) + (torch.linalg.inv(b) + torch.linalg.cholesky(b)).sum((-1, -2)) + torch.linalg.solve(b, a[..., 0]).sum(-1)
    y = y + F.interpolate(x[:, None, None], scale_factor=2, mode="bicubic")[:, 0, 0, ::2] + F.max_pool1d(F.pad(x[:, None], (1, 1)), 3, 1)[:, 0]
    y = y + F.instance_norm(torch.stack((x, w), 1).repeat(1, 1, 2)).sum(1)[:, : x.shape[1]] + F.normalize(x, p=3, dim=1)
""",
}
LATER = list(OPERATORS)[4:7]


@pytest.mark.parametrize(("operators", "device"), [*((o, "cpu") for o in OPERATORS), *((o, "cuda") for o in LATER)])
def test_each_is_what_torch_makes(operators, device, tmp_path):
    """In C++, whose compiler warns of nothing."""
    tensors = {"x": "in n m", "w": "in n m", "i": "in n m int32 integers:-9:9", "y": "out n m"}
    spec = made([{"n": 5, "m": 37}, {"n": 1, "m": 1}, {"n": 2, "m": 16}], tensors=tensors)
    reference = f"import torch\nimport torch.nn.functional as F\n\n\ndef reference(x, w, i):\n{OPERATORS[operators]}    return {{'y': y}}\n"
    check_text(
        folder_of(tmp_path, spec, reference), source(spec, reference, device=device), tmp_path, device, offsets=(0,)
    )


BITS = """\
import torch


def reference(x, e, b, c, w):
    exponent = (x.to(torch.float32).view(torch.int32) >> 23) & 255
    halves = x.to(torch.float16).view(torch.int16) + x.to(torch.bfloat16).view(torch.int16)
    own = b[:, :2].contiguous().view(torch.float16).float() + b[:, 4:8].contiguous().view(torch.int32)
    code = c.view(torch.float8_e4m3fn).to(torch.float32)
    return {
        "exponent": exponent, "scaled": x * (e.to(torch.int32) << 23).view(torch.float32), "own": own, "code": code,
        "halves": halves + x.to(torch.float8_e4m3fn).view(torch.uint8), "byte": w.view(torch.uint8).reshape(*w.shape, 4)[..., 1], "parts": w.view(torch.int16),
    }
"""


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_bits_are_seen_as_another_type(device, tmp_path):
    """Of one size, parts of an element, and several that are one."""
    tensors = {
        "x": "in n m", "e": "in n m uint8 integers:1:255", "b": "in n 8 uint8 bits", "c": "in n m uint8 bits", "w": "in n m int32 bits",
        "exponent": "out n m int32", "scaled": "out n m", "own": "out n 1 float32", "code": "out n m float32", "halves": "out n m int16",
        "byte": "out n m uint8", "parts": "out n 2*m int16",
    }  # fmt: skip
    spec = made([{"n": 5, "m": 37}, {"n": 1, "m": 1}, {"n": 2, "m": 16}], tensors=tensors)
    check_text(folder_of(tmp_path, spec, BITS), source(spec, BITS, device=device), tmp_path, device, offsets=(0,))


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
