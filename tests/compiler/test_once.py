"""What is read or computed once: for two results of the same rows, for a loss and its gradient, for windows, a scan's followers and columns."""

from __future__ import annotations

import pytest
import torch

from compiler.codegen.powers import power_of_quarters
from compiler.compile import Meaning, source
from compiler.draft.expressions import Expr, constant, make
from compiler.draft.partition import ROW
from compiler.evaluate import UNARY
from tests.compiler.folders import check_text, folder_of, made

HEAD = "import torch\nimport torch.nn.functional as F\n\n\n"
ROWS = """\
def reference(x, w):
    a, b = torch.log_softmax(x, -1), torch.log_softmax(w, -1)
    return {"kl": (a.exp() * (a - b)).sum(-1)}
"""
LOSS = """\
def reference(x, at):
    own = torch.arange(x.shape[1], device=x.device) == at[:, None]
    return {"grad": torch.sigmoid(x) - own.to(x.dtype), "loss": F.softplus(torch.where(own, -x, x)).sum().reshape(1)}
"""
WINDOWS = """\
def reference(x):
    before = F.pad(x, (0, 0, 1, -1)) + F.pad(x, (-1, 1))
    return {"y": F.local_response_norm(F.relu(x), 3, beta=0.75) + before, "z": (x * x + 1) ** -0.25 + x.abs() ** 1.5}
"""
SCAN = """\
def reference(x, m):
    return {"y": F.softplus(x).view(-1, 8, m).cumsum(1).flatten(0, 1) * 0.5}
"""
COLUMNS = """\
def reference(mix, x):
    m = torch.softmax(mix, -1) + 1e-6
    for _ in range(5):
        m = m / m.sum(-2, keepdim=True)
        m = m / m.sum(-1, keepdim=True)
    return {"y": torch.einsum("nij,njd->nid", m, x)}
"""


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_rows_that_two_results_need_are_read_once(dtype, tmp_path):
    """Their exponentials are approximate, as what is read is; the logarithm of a row is not."""
    tensors = {"x": "in n m", "w": "in n m", "kl": "out n float32"}
    spec = made([{"n": 3, "m": 40}, {"n": 2, "m": 9}, {"n": 1, "m": 1}], (dtype,), ("cuda",), tensors=tensors)
    (kernel,) = Meaning(spec, HEAD + ROWS).program(dtype, 8).kernels
    text = source(spec, HEAD + ROWS)
    assert (
        kernel.layout == ROW and "+= fast_exp(" in text and "logf(log_softmax_sum" in text and "__logf(log" not in text
    )
    check_text(folder_of(tmp_path, spec, HEAD + ROWS), text, tmp_path)


FORMS = {
    "a loss and its gradient": (LOSS, {"x": "in n m", "at": "in n int64 index:m", "grad": "out n m", "loss": "out 1 float32"}, {"n": 200000, "m": 80}, [{"n": 300, "m": 16}, {"n": 7, "m": 3}], "chunk_packs", "made_grad_elements"),
    "crops, windows, roots": (WINDOWS, {"x": "in n c h w", "y": "out n c h w", "z": "out n c h w"}, {"n": 2, "c": 5, "h": 4, "w": 8}, [{"n": 2, "c": 3, "h": 3, "w": 7}], "load_shifted_part", "powf("),
    "a place that few threads seek": ("def reference(x): return {'at': x.argmax(-1)}\n", {"x": "in n m", "at": "out n int64"}, {"n": 64, "m": 4096}, [{"n": 3, "m": 40}, {"n": 2, "m": 9}], "if (argmax_max_own == argmax_max ||", "kept_argmax"),
    "pooling and its places": ("def reference(x): return dict(zip('yp', F.max_pool2d(x, 2, return_indices=True)))\n", {"x": "in n c 2*h 2*w", "y": "out n c h w", "p": "out n c h w int64"}, {"n": 2, "c": 3, "h": 8, "w": 16}, [{"n": 1, "c": 2, "h": 3, "w": 5}], "x_ahead", "_max[8]"),
    "what follows a scan": (SCAN, {"x": "in 8*n m", "y": "out 8*n m float32"}, {"n": 4096, "m": 512}, [{"n": 3, "m": 24}, {"n": 2, "m": 5}], "phase_scan", "kept_cumsum"),
    "a matrix for many columns": (COLUMNS, {"mix": "in n 4 4 float32", "x": "in n 4 d", "y": "out n 4 d"}, {"n": 512, "d": 2560}, [{"n": 3, "d": 24}, {"n": 1, "d": 3}], "bmm_kept[", "kept_bmm"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_what_many_need_is_made_once(form, tmp_path):
    reference, tensors, timed, small, has, lacks = FORMS[form]
    spec = made([timed, *small], ("float16",), ("cuda",), timed=1, tensors=tensors)
    text = source(spec, HEAD + reference)
    assert has in text and lacks not in text
    check_text(folder_of(tmp_path, spec, HEAD + reference), text, tmp_path, offsets=(0,))


@pytest.mark.parametrize("exponent", [-1, -0.75, -0.5, -0.25, 0.25, 0.5, 0.75, 1.25, 1.5, 2, 4])
def test_powers_by_roots_are_those_of_torch(exponent):
    """A quarter of minus zero was minus zero, and one over it minus infinity."""
    x = torch.tensor([-0.0, 0.0, 2.0, 0.3, -1.5, torch.inf, -torch.inf, torch.nan], dtype=torch.float64)

    def value(expr: Expr) -> torch.Tensor:
        if expr.op == "const":
            return torch.tensor(expr.args[0], dtype=torch.float64)
        if expr.op == "load":
            return x
        parts = [value(arg) for arg in expr.args]
        known = {"mul": torch.mul, "div": torch.div, "eq": torch.eq, "masked": torch.where, "where": torch.where}
        return (known.get(expr.op) or UNARY[expr.op])(*parts)

    made = power_of_quarters(make("load", "x", type="float"), constant(exponent, "float"))
    wanted = x**exponent
    assert made is not None and torch.allclose(value(made), wanted, rtol=1e-12, atol=0, equal_nan=True)
