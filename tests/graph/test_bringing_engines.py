"""`run.py bring` from tests of engines whose own Python is here and whose extensions, GPU and Triton are not."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from graph.bringing import bring
from graph.checking import check
from kernels import catalog
from kernels.catalog import KernelError

ENGINE = {
    "pyproject.toml": "",
    "engine_x/__init__.py": "from engine_x import ops\nimport engine_x._C\n",
    "engine_x/platform.py": "import torch\nimport package_that_is_nowhere as p\n\n\ndef device() -> p.Device | None:\n    return torch.device('cuda')\n\n\n"
    "SMS = torch.cuda.get_device_properties(0).multi_processor_count\nassert p.driver() != 3, 'no driver'\nLATER = 1\n",
    "engine_x/ops.py": "import torch\nfrom engine_x.platform import LATER, device\n\ntry:\n    import fast_path_that_is_nowhere\nexcept ImportError:\n"
    "    fast_path_that_is_nowhere = None\n\n\ndef scaled(x, factor=2.0):\n    assert fast_path_that_is_nowhere is None and x.is_cuda\n"
    "    out = torch.empty_like(x)\n    with torch.cuda.device(x.device):\n        torch.ops._engine_x.scaled(out, x, factor)\n    return out\n",
    "tests/helpers.py": "import torch\n\n\n@torch.compile\ndef right(x):\n    y = torch.as_tensor(x, dtype=torch.float32, device=x.device).clone() + torch.zeros(1, device='cuda')\n    y.view(-1).mul_(2.0)\n    return y.unsqueeze(1).sum(1)\n",
    "tests/test_scaled.py": """
import pytest
import torch
from engine_x import ops
from helpers import right


@pytest.fixture
def x(shape, event: torch.cuda.Event | None = None):
    made = torch.empty(*shape, device="cuda")
    made[:] = torch.randn(*shape, generator=torch.Generator(device="cuda"), device=torch.device("cuda", 0))
    yield made


@pytest.fixture
def expected(x):
    yield right(x)


@pytest.mark.parametrize("shape", [(2, 40), (2, 64), (2, 1000)])
def test_scaled(x, expected, shape):
    out = ops.scaled(x)
    torch.cuda.current_stream().synchronize()
    assert out.shape == shape and (out - expected).abs().max() < 1e-4
""",
    "csrc/scaled.cpp": "void scaled(float* out, const float* x, float factor, long n) {\n  for (long i = 0; i < n; ++i) out[i] = x[i] * factor;\n}\n",
    "engine_x/triton_ops.py": """
import torch
import triton
import triton.language as tl


@triton.autotune(configs=[triton.Config({"BLOCK": 128}, num_warps=4)], key=["n"])
@triton.jit
def add_kernel(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


def add(x, y, shape, out=None):
    n = x.numel()
    if triton.next_power_of_2(n) < n:
        raise ValueError(n)
    out = torch.empty_like(x) if out is None else out
    add_kernel[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, out, n)
    return out
""",
    "tests/test_add.py": """
import numpy as np
import pytest
import torch
from engine_x.triton_ops import add


@pytest.mark.parametrize("count", [10, 3000])
def test_add(count):
    x, y = torch.randn(count).to(0), torch.randn(count).cuda()
    np.testing.assert_allclose(add(x, y, [count]).cpu().numpy(), (x + y).cpu().numpy())
""",
}


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    for name, text in ENGINE.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_the_engines_own_python_runs_up_to_the_operator_that_is_not_built(engine: Path) -> None:
    to = engine / "made"
    said = list(bring(f"{engine}/tests/test_scaled.py::test_scaled", engine / "csrc" / "scaled.cpp", "scaled", to))
    assert any("package_that_is_nowhere cannot be imported" in one for one in said), said
    assert any("engine_x.platform was imported in part (AssertionError: no driver)" in one for one in said), said
    spec = catalog.load(str(to)).spec
    assert [(t.name, t.role, t.shape[0]) for t in spec.tensors] == [("out", "output", "2"), ("x", "input", "2")]
    text = (to / "reference.py").read_text()
    assert ".unsqueeze(1)" in text and ".sum(1)" in text and "device=x.device" in text, text
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines
    assert any("computes what the reference says" in line.said for line in lines), lines


def test_a_function_of_tritons_is_seen_where_it_is_called(engine: Path) -> None:
    to = engine / "made"
    said = list(bring(f"{engine}/tests/test_add.py", engine / "engine_x" / "triton_ops.py", "add", to))
    spec = catalog.load(str(to)).spec
    assert [(t.name, t.role, t.shape) for t in spec.tensors] == [
        ("x", "input", ("count",)),
        ("y", "input", ("count",)),
        ("out", "output", ("count",)),
    ]
    assert any("shape changes from call to call ([10], [3000])" in one for one in said), said
    assert "x.add(y)" in (to / "reference.py").read_text().replace("(x + y)", "x.add(y)")
    if importlib.util.find_spec("triton") is None:
        assert any("triton cannot be imported" in one for one in said), said


def test_what_stands_in_the_way_is_said(engine: Path) -> None:
    (engine / "tests" / "test_add.py").write_text(
        "import another_that_is_nowhere as a\n\n\ndef test_add():\n    a.load(1)\n    raise RuntimeError('no way')\n"
    )
    with pytest.raises(KernelError, match="RuntimeError: no way; not installed here: another_that_is_nowhere"):
        list(bring(f"{engine}/tests/test_add.py::test_add", engine / "csrc" / "scaled.cpp", "scaled", engine / "made"))


FUNCTION = {
    "pyproject.toml": "",
    "engine_z/__init__.py": "",
    "engine_z/layers.py": """
import torch


class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, neg=False):
        assert not x.is_cuda or torch.cuda.is_available()
        y = torch.empty_like(x)
        for row in range(x.shape[0]):
            y[row] = x[row]
        y.view(-1)[:] = torch.frombuffer(bytearray(4 * x.numel()), dtype=torch.float32)
        return y.view_as(x)

    @staticmethod
    def backward(ctx, given):
        return given, None


def halve(x):
    return Halve.apply(x)
""",
    "tests/test_halve.py": """
import pytest
import torch
from engine_z.layers import halve


@pytest.mark.parametrize("rows", [2, 40])
def test_halve(rows):
    x = torch.randn(rows, 8, device="cuda", requires_grad=True)
    torch.testing.assert_close(halve(x).double(), x.double() / 2)
""",
}


def test_a_function_with_a_gradient_is_brought_by_its_class(tmp_path: Path) -> None:
    for name, text in FUNCTION.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    to = tmp_path / "made"
    list(bring(f"{tmp_path}/tests/test_halve.py", tmp_path / "engine_z/layers.py", "Halve", to))
    spec = catalog.load(str(to)).spec
    assert [(t.name, t.role, spec.dtype(t, spec.workloads[0])) for t in spec.tensors] == [
        ("x", "input", "float32"),
        ("out", "output", "float32"),
    ], spec
    lines = [line.kind for line in check(str(to), None, lambda _said: None) if line.what == "reference"]
    assert lines == ["right"], lines


def test_a_class_of_autograd_is_called_as_its_forward_says() -> None:
    import torch

    from harness.farside import forms

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            return x * scale

    called = forms.apply_of(Doubled)
    assert forms.positional(called) == 2
    assert called(torch.ones(2), 2.0).tolist() == [2.0, 2.0]
