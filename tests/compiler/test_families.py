"""A kernel's family by what its reference does: names say nothing here, and every kernel is called f."""

from __future__ import annotations

import pytest

from compiler.families import families
from kernels import catalog
from kernels.spec import Spec
from tests.compiler.folders import made

T = "import torch\nimport torch.nn.functional as F\n"
TOKENS = {"n": 512, "d": 64, "e": 8, "s": 1024, "k": 256, "one": 1}


def spec_of(tensors: dict[str, str]) -> Spec:
    words = " ".join(tensors.values()).split()
    return made([{axis: size for axis, size in TOKENS.items() if axis in words}], tensors=tensors)


ROWS = {"x": "in n d", "y": "out n d"}
CASES = [
    ("elementwise", ROWS, "def reference(x): return {'y': F.silu(x) * x}"),
    ("elementwise", ROWS, "def reference(x, dtype): return {'y': (x * 2).to(dtype).float()}"),
    ("row reduction", ROWS, "def reference(x): return {'y': x / x.norm(dim=-1, keepdim=True)}"),
    ("column reduction", {"x": "in n d", "y": "out d"}, "def reference(x): return {'y': x.var(0)}"),
    ("row reduction", {"x": "in n d", "y": "out d"}, "def reference(x): return {'y': x.view(x.shape[1], -1).sum(1)}"),
    ("column reduction", {"x": "in n d", "y": "out d"}, "def reference(x): return {'y': x.t().sum(1)}"),
    ("select row reduction", {"x": "in n e", "y": "out n"},
     "def reference(x):\n    p = x.softmax(-1)\n    return {'y': p.topk(2).values.sum(-1)}"),
    ("select", {"x": "in n d", "y": "out n int64"}, "def reference(x): return {'y': x.argmax(-1)}"),
    ("select column reduction", {"x": "in n d", "y": "out d"}, "def reference(x): return {'y': x.abs().topk(2, dim=0).values[1]}"),
    ("select column reduction", {"x": "in n d", "y": "out d int64"}, "def reference(x): return {'y': x.argmax(0)}"),
    ("sort", ROWS, "def reference(x): return {'y': x.sort(-1).values}"),
    ("scan", ROWS, "def reference(x): return {'y': x.cumsum(-1)}"),
    ("scan", ROWS, "def reference(x):\n    h, out = torch.zeros_like(x[:, 0]), []\n    for t in range(x.shape[1]):\n"
     "        h = 0.5 * h + x[:, t]\n        out.append(h)\n    return {'y': torch.stack(out, 1)}"),
    ("histogram", {"x": "in n int32 index:e", "y": "out e int64"}, "def reference(x, e): return {'y': torch.bincount(x.long(), minlength=e)}"),
    ("histogram", {"x": "in n int32 index:e", "y": "out e int64"}, "def reference(x, e): return {'y': F.one_hot(x.long(), e).sum(0)}"),
    ("histogram", {"x": "in n int32 index:e", "y": "out e"},
     "def reference(x, e): return {'y': torch.zeros(e).index_add_(0, x.long(), torch.ones(x.shape[0]))}"),
    ("scatter", {"x": "in n d", "i": "in n int32 index:e", "y": "out e d"},
     "def reference(x, i, e): return {'y': x.new_zeros(e, x.shape[1]).index_add_(0, i.long(), x)}"),
    ("gather", {"x": "in s d", "i": "in n int32 index:s", "y": "out n d"}, "def reference(x, i): return {'y': x[i.long()]}"),
    ("matrix product", {"a": "in n k", "b": "in k d", "y": "out n d"}, "def reference(a, b): return {'y': (a @ b).relu()}"),
    ("quantised product", {"a": "in one k", "b": "in d k int8", "s": "in d", "y": "out one d"},
     "def reference(a, b, s): return {'y': a @ (b.to(a.dtype) * s[:, None]).t()}"),
    ("attention", {"q": "in n d", "k_": "in s d", "v": "in s d", "y": "out n d"},
     "def reference(q, k_, v): return {'y': (q @ k_.t()).softmax(-1) @ v}"),
    ("decode attention", {"q": "in e d", "k_": "in s d", "v": "in s d", "y": "out e d"},
     "def reference(q, k_, v): return {'y': (q @ k_.t()).softmax(-1) @ v}"),
    ("decode attention", {"q": "in n d", "k_": "in n s d", "v": "in n s d", "y": "out n d"},
     "def reference(q, k_, v):\n    p = torch.einsum('nd,nsd->ns', q, k_).softmax(-1)\n    return {'y': torch.einsum('ns,nsd->nd', p, v)}"),
    ("decode attention", {"q": "in n d", "k_": "in n s d", "v": "in n s d", "y": "out n d"},
     "def reference(q, k_, v):\n    p = (q[:, None] * k_).sum(-1).softmax(-1)\n    return {'y': (p[..., None] * v).sum(1)}"),
    ("decode attention", {"q": "in n e d", "k_": "in n s d", "v": "in n s d", "y": "out n e d"},
     "def reference(q, k_, v): return {'y': F.scaled_dot_product_attention(q, k_, v)}"),
    ("matrix product", {"a": "in n e", "b": "in e d", "y": "out n d"}, "def reference(a, b): return {'y': (a[:, :, None] * b[None]).sum(1)}"),
    ("row reduction", {"a": "in n d", "b": "in d", "y": "out n"}, "def reference(a, b): return {'y': (a * b).sum(1).exp()}"),
    ("quantised product", {"a": "in one k", "b": "in d e int32 bits", "s": "in d", "y": "out one d"},
     "def reference(a, b, s):\n    w = torch.stack([(b >> 4 * i) & 15 for i in range(32)], -1).flatten(1).to(a.dtype)\n"
     "    return {'y': a @ (w * s[:, None]).t()}"),
    ("state update", {"h": "inout n d k", "x": "in n d", "b": "in n k", "y": "out n d"},
     "def reference(h, x, b):\n    h = 0.9 * h + x[..., None] * b[:, None]\n    return {'h': h, 'y': (h * b[:, None]).sum(-1)}"),
    ("convolution", {"x": "in n e d", "w": "in e e e", "y": "out n e d"}, "def reference(x, w): return {'y': F.conv1d(x, w)}"),
]  # fmt: skip


@pytest.mark.parametrize(("expected", "tensors", "reference"), CASES)
def test_the_family_is_what_the_reference_does(expected: str, tensors: dict[str, str], reference: str) -> None:
    assert " ".join(families(spec_of(tensors), T + reference)) == expected


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("silu_and_mul", "elementwise"), ("fused_add_rmsnorm", "row reduction"), ("merge_attn_states_lse", "elementwise"),
        ("gather_mean", "gather"), ("gather_rows_by_id", "gather"), ("scatter_mean_backward", "scatter"),
    ],
)  # fmt: skip
def test_the_family_of_a_kernel_of_the_catalog(kernel: str, expected: str) -> None:
    found = catalog.load(kernel)
    assert families(found.spec, (found.folder / "reference.py").read_text()) == (expected,)


@pytest.mark.parametrize(
    "reference", ["def reference(x): raise ValueError", "no python", "import nothing_of_that_name"]
)
def test_what_cannot_be_run_has_no_family_of_its_own(reference: str) -> None:
    assert families(spec_of(ROWS), reference) == ()
