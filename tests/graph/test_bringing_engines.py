"""`run.py bring` from tests of engines whose own Python is here and whose extensions, GPU and Triton are not."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from graph.bringing import bring
from graph.checking import check
from harness.backends import stable_abi
from harness.capture.standins import EngineImports
from harness.capture.watch import CallWatcher
from harness.checks.cases import make_case
from kernels import catalog
from kernels.catalog import KernelError
from tests.graph.checkout import write_texts

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
    write_texts(tmp_path, ENGINE)
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
    assert any("shape is [x.shape[0]] in each call" in one for one in said), said
    assert "x.add(y)" in (to / "reference.py").read_text().replace("(x + y)", "x.add(y)")
    if importlib.util.find_spec("triton") is None:
        assert any("triton cannot be imported" in one for one in said), said


HUB = {
    "pyproject.toml": "",
    "harness/__init__.py": "SCALE = 2.0\n",
    "tests/test_hub.py": """
import kernels
import pytest
import torch
from harness import SCALE

hub = kernels.get_kernel("someone/doubled", version=1)


@pytest.mark.parametrize("shape", [(8, 8), (300, 7)])
def test_doubled(shape):
    x = torch.randn(shape)
    torch.testing.assert_close(x * SCALE, hub.doubled(x, torch.empty_like(x)))
""",
    "csrc/doubled.cpp": "void doubled_cpu(float* out, const float* in, long n) {\n  for (long i = 0; i < n; ++i) out[i] = 2 * in[i];\n}\n",
}


def test_an_engine_has_packages_of_its_own_by_this_programs_names(tmp_path: Path) -> None:
    """Hugging Face's `kernels` loads a kernel by its name; the test's second argument is what comes back."""
    write_texts(tmp_path, HUB)
    to = tmp_path / "made"
    said = list(bring(f"{tmp_path}/tests/test_hub.py", tmp_path / "csrc" / "doubled.cpp", "doubled_cpu", to))
    assert any("kernels cannot be imported" in one for one in said), said
    spec = catalog.load(str(to)).spec
    assert [(t.name, t.role) for t in spec.tensors] == [("out", "output"), ("in_", "input")], spec
    lines = list(check(str(to), None, lambda _said: None))
    assert any("computes what the reference says" in line.said for line in lines), lines


SOURCE_LAYOUT = {
    "pyproject.toml": "",
    "src/engine_z/__init__.py": "import engine_z_built  # nowhere\n",
    "src/engine_z/right.py": "def right(x):\n    return x * 2\n",
    "src/engine_z/ops.py": "import engine_z_built\nimport torch\n\n\ndef doubled(x):\n    out = torch.empty_like(x)\n    engine_z_built.doubled_cpu(out, x)\n    return out\n",
    "tests/test_doubled.py": """
import pytest
import torch

module = __import__("engine_z.right", fromlist=["right"])
from engine_z.ops import doubled


@pytest.mark.parametrize("rows", [3, 40])
def test_doubled(rows):
    x = torch.randn(rows, 64)
    torch.testing.assert_close(doubled(x), module.right(x))
""",
    "csrc/doubled.cpp": HUB["csrc/doubled.cpp"],
}


def test_packages_below_src_are_the_checkouts_own(tmp_path: Path) -> None:
    write_texts(tmp_path, SOURCE_LAYOUT)
    to = tmp_path / "made"
    list(bring(f"{tmp_path}/tests/test_doubled.py", tmp_path / "csrc" / "doubled.cpp", "doubled_cpu", to))
    assert "mul(2)" in (to / "reference.py").read_text()


def test_a_device_that_the_engine_looks_for_itself_is_the_gpu(tmp_path: Path) -> None:
    """By a program of the driver's, or in a module that cannot be imported here."""
    test = (
        SOURCE_LAYOUT["tests/test_doubled.py"]
        .replace("import pytest", "import pytest\nfrom engine_z.found import device, other")
        .replace("(rows, 64)", "(rows, 64, device=device) + torch.zeros(64, device=other)")
    )
    found = "import subprocess\nimport torch\n\nassert subprocess.run(['nvidia-smi'], capture_output=True).returncode == 0\ndevice = 'cuda'\nother = torch.no_such_vendor\n"
    write_texts(tmp_path, SOURCE_LAYOUT | {"tests/test_doubled.py": test, "src/engine_z/found.py": found})
    to = tmp_path / "made"
    list(bring(f"{tmp_path}/tests/test_doubled.py", tmp_path / "csrc" / "doubled.cpp", "doubled_cpu", to))
    assert "mul(2)" in (to / "reference.py").read_text()


def test_dtypes_of_the_steps_go_with_an_input_where_the_function_begins_with_its_output(tmp_path: Path) -> None:
    test = (
        SOURCE_LAYOUT["tests/test_doubled.py"]
        .replace('("rows", [3, 40])', '("dtype", [torch.float16, torch.bfloat16])')
        .replace("test_doubled(rows)", "test_doubled(dtype)")
        .replace("torch.randn(rows, 64)", "torch.randn(40, 64, dtype=dtype)")
        .replace("module.right(x)", "module.right(x.float()).to(dtype)")
    )
    source = "template <typename T> void doubled_cpu(T* out, const T* in, long n) {}\n"
    write_texts(tmp_path, SOURCE_LAYOUT | {"tests/test_doubled.py": test, "csrc/doubled.cpp": source})
    to = tmp_path / "made"
    list(bring(f"{tmp_path}/tests/test_doubled.py", tmp_path / "csrc" / "doubled.cpp", "doubled_cpu", to))
    assert ".to(in_.dtype)" in (to / "reference.py").read_text()


def test_arguments_without_names_are_refused(tmp_path: Path) -> None:
    text = "import torch\n\n\nclass Own(torch.autograd.Function):\n    @staticmethod\n    def forward(ctx, *args):\n        return args[0]\n"
    (tmp_path / "own.py").write_text(text)
    with pytest.raises(KernelError, match=r"Own takes \*args, and nothing says what each is"):
        list(bring(f"{tmp_path}/test_own.py", tmp_path / "own.py", "Own", tmp_path / "made"))


RETURNED = {
    "pyproject.toml": "",
    "engine_y/__init__.py": "",
    "tests/test_scores.py": """
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(list(Path(__file__).parent.glob("../build/lib.*/"))[0]))
from engine_y import _C


@pytest.mark.parametrize("rows", [9, 40, 300])
def test_scores(rows):
    x = torch.randn(rows, 64, dtype=torch.bfloat16)
    made, first = _C.scores(x)
    torch.testing.assert_close(made, x.float() * 2.0)
    torch.testing.assert_close(first, x.float()[:, :3] + 1)
""",
    "csrc/scores.cpp": """#include <torch/extension.h>
std::vector<torch::Tensor> scores(torch::Tensor x) {
  if (x.numel() == 0) return {x, x};
  auto made = torch::empty_like(x);  // {a, b};
  auto first = torch::empty({x.size(0), 3}, x.options().dtype(torch::kFloat16));
  at::Tensor norms = at::empty({x.size(0)}, at::TensorOptions().dtype(at::ScalarType::Double));
  return {made, first, norms};
}
""",
}


def test_what_python_writes_as_signs_is_written_down(tmp_path: Path) -> None:
    every = (
        "1.0 / (x**2 + 1)", "2**x - x**0.5", "1 - x // 0.3 + 3 // x", "5 % (x + 1) + x % 0.7", "-x + abs(x - 0.5)",
        "3 * x / 2 - x * x", "x[:, :4]",
    )  # fmt: skip
    columns = [re.sub(r"\bx\b(?!\[)", f"x[:, {10 * at}:{10 * at + 10}]", one) for at, one in enumerate(every)]
    expected = f"torch.cat([{', '.join(columns)}], -1)"
    text = RETURNED["tests/test_scores.py"].replace("dtype=torch.bfloat16)", "dtype=torch.float32) + 0.5")
    text = text.replace(
        "randn", "rand"
    )  # between 0.5 and 1.5: what is near 0 would make quotients beside which nothing counts
    text = text.replace("x.float() * 2.0)", f"{expected})").replace(
        "    torch.testing.assert_close(first, x.float()[:, :3] + 1)\n", ""
    )
    write_texts(tmp_path, RETURNED | {"tests/test_scores.py": text})
    to = tmp_path / "made"
    said = list(bring(f"{tmp_path}/tests/test_scores.py", tmp_path / "csrc" / "scores.cpp", "scores", to))
    assert not any("reference.py" in one for one in said if "norms" not in one), said
    assert "'out':" in (to / "reference.py").read_text(), "it was refused: its values are not the test's"


def test_what_only_asks_for_gradients_is_not_written_down(tmp_path: Path) -> None:
    """FlashRWKV2's test does; the compiler could not trace the reference."""
    text = RETURNED["tests/test_scores.py"].replace(
        "x.float() * 2.0)", "x.detach().clone().requires_grad_().float() * 2.0)"
    )
    write_texts(tmp_path, RETURNED | {"tests/test_scores.py": text})
    to = tmp_path / "made"
    list(bring(f"{tmp_path}/tests/test_scores.py", tmp_path / "csrc" / "scores.cpp", "scores", to))
    made = (to / "reference.py").read_text()
    assert "requires_grad" not in made and "'out':" in made, made


def test_what_a_function_returns_is_of_the_dtype_that_it_is_made_in(tmp_path: Path) -> None:
    """Tests compare with float32, and not all that is returned. Nor is the engine built, where its test looks for it."""
    write_texts(tmp_path, RETURNED)
    to = tmp_path / "made"
    said = list(bring(f"{tmp_path}/tests/test_scores.py", tmp_path / "csrc" / "scores.cpp", "scores", to))
    spec = catalog.load(str(to)).spec
    assert [(t.name, t.dtype) for t in spec.outputs] == [("out", "T"), ("out_1", "float16")], spec.outputs
    assert any("returns 3 tensors, and the test compares 2: nobody looks at norms" in one for one in said), said


OVERLOADS = {
    "pyproject.toml": "",
    "right.py": """
import torch


def scaled(x, size):
    return x * size


def arguments():
    return [dict(x=torch.randn(rows, 8), size=3) for rows in (5, 90, 700)]
""",
    "csrc/scaled.cpp": """#include <torch/extension.h>
void scaled(torch::Tensor x, torch::Tensor out, float factor, int size) {}
void scaled(torch::Tensor x, torch::Tensor out, int size) {}
""",
}


def test_of_overloads_the_one_is_bound_that_takes_what_the_calls_give(tmp_path: Path) -> None:
    """SageAttention's quantisations: the function's name alone does not say which."""
    write_texts(tmp_path, OVERLOADS)
    right, to = tmp_path / "right.py", tmp_path / "made"
    list(bring(f"{right}:scaled", tmp_path / "csrc" / "scaled.cpp", "scaled", to, arguments=f"{right}:arguments"))
    spec = catalog.load(str(to)).spec
    assert [one.name for one in spec.arguments][:3] == ["x", "out", "size"], spec
    assert spec.build.binding == "scaled(x, out, size)"


def test_whose_file_it_is_is_said_without_an_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.12's `Path` imports as it is made, and imports ask this."""
    imports = EngineImports(tmp_path / "tests" / "test_hub.py", CallWatcher("doubled"), False)
    inside, beside = str(imports.root / "inside.py"), f"{imports.root}_beside/inside.py"
    made: list[object] = []
    monkeypatch.setattr("pathlib.Path.resolve", lambda self: made.append(self) or self)
    assert [imports.is_own(file) for file in (inside, beside, "")] == [True, False, False] and not made


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
    write_texts(tmp_path, FUNCTION)
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


DIFFERENCES = """
import pytest
import torch
from engine_x.wrapped import halve


def right(x):
    return x.float() / 2


@pytest.mark.parametrize("rows", [2, 40])
def test_halve(rows):
    x = torch.randn(rows, 64, device="cuda").requires_grad_()
    out = halve(x)
    assert (out - right(x.detach())).abs().max().item() < 1e-3 * right(x.detach()).abs().max() + 1e-4
    out.backward(torch.ones_like(out))


def test_numbers():
    assert halve(torch.tensor([2.0, 6.0], device="cuda")).tolist() == [1.0, 3.0]
"""
WRAPPED = """
import halve_cuda_that_is_not_built
import torch


class Halve(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return halve_cuda_that_is_not_built.halve(x, 0.5)


def halve(x):
    return Halve.apply(x)
"""


def test_a_difference_of_what_was_not_run_is_a_comparison(engine: Path) -> None:
    (engine / "engine_x/wrapped.py").write_text(WRAPPED)
    (engine / "tests/test_halve.py").write_text(DIFFERENCES)
    text = "#include <torch/extension.h>\nat::Tensor halve(at::Tensor& x, double scale) { return x.clone(); }\n"
    (engine / "csrc/halve.cpp").write_text(text)
    list(bring(f"{engine}/tests/test_halve.py::test_halve", engine / "csrc/halve.cpp", "halve", engine / "made"))
    spec = catalog.load(str(engine / "made")).spec
    assert [(t.name, t.role) for t in spec.tensors] == [("x", "input"), ("out", "output")]
    assert " / 2" in (engine / "made/reference.py").read_text() or "div" in (engine / "made/reference.py").read_text()
    with pytest.raises(KernelError, match="numbers that stand in it"):
        list(bring(f"{engine}/tests/test_halve.py::test_numbers", engine / "csrc/halve.cpp", "halve", engine / "none"))


TUNED = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) * FACTOR, mask=at < n)


def softplus(input, beta=1.0):
    out = torch.empty_like(input)
    kernel[(triton.cdiv(input.numel(), 128),)](input, out, input.numel(), BLOCK=128)
    return out
"""
TIMES = """
import torch


def times(input, beta=1.0, more=2, power=None):
    return input * more


def arguments():
    return [{"input": torch.randn(n, 64, dtype=kind)} for n in (2, 100) for kind in (torch.float32, torch.bfloat16)]


def doubled_arguments():
    return [{"input": torch.randn(n, 64), "dim": -1} for n in (2, 100)]
"""


def test_a_function_of_tritons_is_called_by_its_own_parameters_and_runs_in_the_interpreter(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(TIMES)
    for name, factor in (("good", "2.0"), ("bad", "3.0")):
        (tmp_path / f"{name}.py").write_text(TUNED.replace("FACTOR", factor))
        target, arguments = f"{tmp_path}/right.py:times", f"{tmp_path}/right.py:arguments"
        said = list(bring(target, tmp_path / f"{name}.py", "softplus", tmp_path / name, arguments=arguments))
        assert not any("distributed" in one for one in said), said  # normal numbers of bfloat16 are few different ones
        names = [argument.name for argument in catalog.load(str(tmp_path / name)).spec.arguments]
        assert "beta" in names and "more" not in names, names  # the kernel takes none
        if importlib.util.find_spec("triton") is not None:
            lines = [line for line in check(str(tmp_path / name), None, lambda _s: None) if line.what == "baseline.py"]
            assert lines[-1].kind == ("right" if name == "good" else "fault"), lines
            assert "interpreter" in lines[-1].said


@pytest.mark.parametrize("function", ["log_softmax", "nn.functional.log_softmax"])
def test_a_function_of_torchs_own_is_called_and_not_copied(tmp_path: Path, function: str) -> None:
    (tmp_path / "right.py").write_text(TIMES)
    (tmp_path / "good.py").write_text(TUNED.replace("FACTOR", "2.0").replace("beta=1.0", "dim"))
    place, _, name = f"torch.{function}".rpartition(".")
    given = f"{tmp_path}/right.py:doubled_arguments"
    list(bring(f"{place}:{name}", tmp_path / "good.py", "softplus", tmp_path / "made", arguments=given))
    text = (tmp_path / "made/reference.py").read_text()
    assert f"torch.{function}(" in text and "handle_torch_function" not in text, text
    assert [argument.name for argument in catalog.load(str(tmp_path / "made")).spec.arguments][:3] == [
        "input",
        "out",
        "dim",
    ]


def bring_beside(folder: Path, texts: dict[str, str], source: str) -> Path:
    """The folder that is made of `source`, a function of that name, beside right.py's function of the same name and its arguments."""
    write_texts(folder, texts)
    name, to = Path(source).stem, folder / "made"
    list(bring(f"{folder}/right.py:{name}", folder / source, name, to, arguments=f"{folder}/right.py:arguments"))
    return to


def test_headers_above_and_optional_tensors_of_a_function_that_returns_its_output(tmp_path: Path) -> None:
    texts = {
        "csrc/setup.py": "",
        "csrc/all.h": "#include <torch/extension.h>\n",
        "csrc/cpu/own.h": '#pragma once\n#include "../all.h"\nat::Tensor cells(at::Tensor pos, std::optional<at::Tensor> optional_start);\n',
        "csrc/cpu/own.cpp": '#include "own.h"\nat::Tensor cells(at::Tensor pos, std::optional<at::Tensor> optional_start) { return pos; }\n',
        "right.py": "import torch\n\n\ndef cells(pos, start):\n    return (pos - start).long()\n\n\ndef arguments():\n"
        "    return [(torch.rand(n, 3), torch.zeros(3)) for n in (30, 500)]\n",
    }
    write_texts(tmp_path, texts)
    to, given = tmp_path / "made", f"{tmp_path}/right.py:arguments"
    list(bring(f"{tmp_path}/right.py:cells", tmp_path / "csrc/cpu/own.cpp", "cells", to, arguments=given))
    kernel = catalog.load(str(to))
    assert [(one.name, one.role) for one in kernel.spec.tensors] == [
        ("pos", "input"),
        ("optional_start", "input"),
        ("out", "output"),
    ]
    assert {"include/all.h", "include/cpu/own.h"} <= set(kernel.headers), kernel.headers


def test_a_tables_rows_are_an_axis_that_integers_stay_below(tmp_path: Path) -> None:
    """Every call has the same table: as a number it would be too large to look at, and nothing would bound the integers."""
    texts = {
        "store.cpp": "void store(float* cache, const int* slots, const float* k, long count, long dim) {\n"
        "  for (long i = 0; i < count * dim; ++i) cache[slots[i / dim] * dim + i % dim] = k[i];\n}\n",
        "right.py": "import torch\n\n\ndef store(cache, slots, k, count, dim):\n    cache[slots.long()] = k\n\n\ndef arguments():\n"
        "    return [dict(cache=torch.randn(5000, 64), slots=torch.randperm(5000)[:n].int(), k=torch.randn(n, 64), count=n, dim=64) for n in (40, 900, 4000)]\n",
    }
    to = bring_beside(tmp_path, texts, "store.cpp")
    cache, slots, _ = catalog.load(str(to)).spec.tensors
    assert (cache.role, cache.shape, slots.values) == ("inout", ("cache_0", "64"), ("permutation:cache_0",))
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines


def test_integers_before_their_table_stay_below_its_rows(tmp_path: Path) -> None:
    texts = {
        "gather.cpp": "void gather(const int* at, const float* table, float* out, long count) {\n"
        "  for (long i = 0; i < count * 64; ++i) out[i] = table[at[i / 64] * 64 + i % 64];\n}\n",
        "right.py": "import torch\n\n\ndef gather(at, table, out, count):\n    out.copy_(table[at.long()])\n\n\ndef arguments():\n"
        "    return [dict(at=torch.randint(0, 5000, (n,)).int(), table=torch.randn(5000, 64), out=torch.empty(n, 64), count=n) for n in (400, 9000)]\n",
    }
    at, table, _ = catalog.load(str(bring_beside(tmp_path, texts, "gather.cpp"))).spec.tensors
    assert (at.values, table.shape) == (("index:table_0",), ("table_0", "64"))


def test_a_large_table_is_cut_down_where_a_folder_is_checked(tmp_path: Path) -> None:
    texts = {
        "spec.py": "from kernels.spec import Size, Spec, Tensor, Workload\n\nSPEC = Spec(name='rows_of', summary='rows of a table', axes=('rows', 'count'), dtypes=('float32',),\n"
        "    arguments=(Tensor(name='table', role='input', shape=('rows', '4096')), Tensor(name='at', role='input', shape=('count',), dtype='int32', values=('index:rows',)),\n"
        "        Tensor(name='out', role='output', shape=('count', '4096')), Size(name='rows'), Size(name='count')),\n"
        "    workloads=(Workload(axes={'rows': 2100, 'count': 1}, dtype='float32'),))\n",
        "reference.py": "def reference(table, at):\n    return {'out': table[at.long()]}\n",
        "baseline.cpp": '#include <cstdint>\nextern "C" void rows_of_float32(const float* table, const int32_t* at, float* out, int64_t rows, int64_t count) {\n'
        "  for (int64_t i = 0; i < count * 4096; ++i) out[i] = table[at[i / 4096] * 4096 + i % 4096];\n}\n",
    }
    write_texts(tmp_path / "rows_of", texts)
    lines = list(check(str(tmp_path / "rows_of"), None, lambda _said: None))
    (reference,) = [line for line in lines if line.what == "reference"]
    assert reference.kind == "right" and "rows=3 " in reference.said, reference


def test_a_modules_parameter_is_the_argument_that_is_a_copy_of_it(tmp_path: Path) -> None:
    """The engine's module keeps its own copy, transposed; what is right is a module of torch's, initialised in place."""
    texts = {
        "pyproject.toml": "[tool.pytest.ini_options]\naddopts = '--plugin-that-is-nowhere=1'\n",
        "test_linear.py": "import pytest\nimport torch\nimport engine_that_is_nowhere as engine\n\n\n@pytest.mark.parametrize('rows', [2, 7])\n"
        "def test_linear(rows):\n    layer = torch.nn.Linear(12, 20)\n    weight = layer.weight.detach().t().contiguous()\n    x = torch.randn(rows, 12)\n"
        "    out = engine.linear(x, weight, layer.bias.detach().clone())\n    torch.testing.assert_close(out, layer(x))\n",
        "linear.cpp": "void linear(float* out, const float* x, const float* weight, const float* bias, long rows) {\n  for (long i = 0; i < rows * 20; ++i) {\n"
        "    out[i] = bias[i % 20];\n    for (long k = 0; k < 12; ++k) out[i] += x[i / 20 * 12 + k] * weight[k * 20 + i % 20];\n  }\n}\n",
    }
    write_texts(tmp_path, texts)
    to = tmp_path / "made"
    list(bring(f"{tmp_path}/test_linear.py", tmp_path / "linear.cpp", "linear", to))
    text = (to / "reference.py").read_text()
    assert "weight.permute(1, 0)" in text and "linear(x, t0, bias)" in text, text
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines


def test_one_call_of_many_does_not_stand_for_them(engine: Path) -> None:
    text = DIFFERENCES.replace("[2, 40]", "range(1, 12)").replace(
        "return x.float() / 2",
        "import numpy\n    half = torch.tensor(numpy.eye(len(x), dtype='f4')) / 2\n    return half @ x if len(x) > 1 else x.float() / 2",
    )
    (engine / "engine_x/wrapped.py").write_text(WRAPPED)
    (engine / "tests/test_halve.py").write_text(text)
    (engine / "csrc/halve.cpp").write_text(
        "#include <torch/extension.h>\nat::Tensor halve(at::Tensor& x) { return x; }\n"
    )
    list(bring(f"{engine}/tests/test_halve.py::test_halve", engine / "csrc/halve.cpp", "halve", engine / "made"))
    assert catalog.load(str(engine / "made")).spec.tensors[0].shape == ("rows", "64")
    assert "made with a ndarray" in (engine / "made/reference.py").read_text()


def test_texts_lists_streams_and_guards_of_an_engine_without_torch(tmp_path: Path) -> None:
    texts = {
        "csrc/setup.py": "",
        "csrc/pool.h": 'void scaled(const std::vector<int64_t>& x_dims, float* y, const float* x, const std::string& how,\n  const std::string& dtype = "float", int times = 2);\n',
        "csrc/pool.cpp": '#ifdef WITH_ENGINE\n#include <cstdint>\n#include <string>\n#include <vector>\n#include "pool.h"\n'
        "void scaled(const std::vector<int64_t>& x_dims, float* y, const float* x, const std::string& how, const std::string& dtype, int times) {\n"
        '  if (how != "twice" || dtype != "float") return;\n  for (int64_t i = 0; i < x_dims[0] * x_dims[1]; ++i) y[i] = x[i] * times;\n}\n#endif\n',
        "right.py": "import torch\n\n\ndef scaled(x, how):\n    return x * 2\n\n\ndef arguments():\n"
        "    return [(torch.rand(n, m), 'twice') for n, m in ((30, 7), (500, 11))]\n",
    }
    write_texts(tmp_path, texts)
    to, given = tmp_path / "made", f"{tmp_path}/right.py:arguments"
    said = list(bring(f"{tmp_path}/right.py:scaled", tmp_path / "csrc/pool.cpp", "scaled", to, arguments=given))
    build = catalog.load(str(to)).spec.build
    assert build.defines == {"WITH_ENGINE": 1} and any("WITH_ENGINE" in one for one in said)
    assert build.binding == 'scaled({y_0, y_1}, y, x, "twice")', build.binding
    lines = list(check(str(to), None, lambda _said: None))
    assert [line.kind for line in lines] == ["right"] * 4, lines
    text = texts["csrc/pool.cpp"].replace("const std::string& how,", "void* compute_stream, const std::string& how,")
    (tmp_path / "csrc/pool.cu").write_text(text)
    list(bring(f"{tmp_path}/right.py:scaled", tmp_path / "csrc/pool.cu", "scaled", tmp_path / "cuda", arguments=given))
    binding = catalog.load(str(tmp_path / "cuda")).spec.build.binding
    assert str(binding).startswith('scaled({y_0, y_1}, y, x, stream, "twice"'), binding


def test_a_struct_that_no_call_gives_is_made_by_its_own_constructor(tmp_path: Path) -> None:
    texts = {
        "twice.cu": "struct Places { int gap = 0; };\ntemplate <typename T, typename A>\nvoid twice(T* out, const T* x, int n, A by, const Places& places) {}\n",
        "right.py": "import torch\n\n\ndef twice(x, n):\n    return x * 2\n\n\ndef arguments():\n    return [(torch.randn(n), n) for n in (1, 500)]\n",
    }
    spec = catalog.load(str(bring_beside(tmp_path, texts, "twice.cu"))).spec
    assert str(spec.build.binding["float32"]).endswith("(out, x, n, by, Places{})"), spec.build.binding
    assert len(spec.tensors[1].values) > 1, "one element says nothing of how x is distributed"


def test_memory_that_only_the_kernel_uses_is_a_workspace_and_pointers_may_be_handed_as_numbers(tmp_path: Path) -> None:
    """`out` is returned here and written in place there. The calls are lists."""
    texts = {
        "any.cu": "#include <cstdint>\n#include <cuda_fp16.h>\nvoid any(int32_t n, std::uintptr_t x, std::uintptr_t scratch, std::uintptr_t out, std::uintptr_t stream) {}\n",
        "right.py": "import torch\n\n\ndef any(n, x, scratch, out):\n    return torch.where((torch.isinf(x) | torch.isnan(x)).any(), torch.ones_like(out), out)\n\n\n"
        "def arguments():\n    return [[n, torch.rand(n).half() / (n - 30), torch.zeros(1024, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)] for n in (30, 500)]\n",
    }
    spec = catalog.load(str(bring_beside(tmp_path, texts, "any.cu"))).spec
    assert [(one.name, one.role) for one in spec.tensors] == [
        ("x", "input"),
        ("scratch", "workspace"),
        ("out", "inout"),
    ]
    assert spec.build.binding == "any(n, (uintptr_t)x, (uintptr_t)scratch, (uintptr_t)out, (uintptr_t)stream)"


def test_calls_that_the_function_of_what_is_right_does_not_take_are_refused(tmp_path: Path) -> None:
    texts = {
        "any.cu": "void any(float* x) {}\n",
        "right.py": "def any(x):\n    return x\n\n\ndef arguments():\n    return [[1, 2]]\n",
    }
    with pytest.raises(KernelError, match="makes arguments that .* does not take"):
        bring_beside(tmp_path, texts, "any.cu")


def test_a_function_of_pointers_beside_torchs_headers_gets_the_tensors_memory(tmp_path: Path) -> None:
    texts = {
        "twice.cu": '#include "ATen/ATen.h"\ntypedef at::BFloat16 bf16;\nvoid twice(int n, const bf16 *x, bf16 *y) {}\n',
        "right.py": "import torch\n\n\ndef twice(n, x):\n    return x * 2\n\n\ndef arguments():\n    return [(n, torch.randn(n).bfloat16()) for n in (30, 500)]\n",
    }
    spec = catalog.load(str(bring_beside(tmp_path, texts, "twice.cu"))).spec
    assert spec.build.binding == "twice(n, (const bf16 *)x.data_ptr(), (bf16 *)y.data_ptr())"


@pytest.mark.parametrize("returns", ["void", "std::tuple<at::Tensor, at::Tensor>"])
def test_what_is_returned_here_and_has_no_parameter_there_is_written_in_place(tmp_path: Path, returns: str) -> None:
    """An optimiser, whose function may hand back what it was handed."""
    body = "{}" if returns == "void" else "{ return {param, moment}; }"
    texts = {
        "step.cpp": f"#include <torch/extension.h>\n{returns} step(at::Tensor& param, const at::Tensor& grad, at::Tensor& moment, const float rate) {body}\n",
        "right.py": "import torch\n\n\ndef step(param, grad, moment, rate, unused=3):\n    moment = moment / 2 + grad\n    return param - rate * moment, moment\n\n\n"
        "def arguments():\n    return [(torch.randn(n), torch.randn(n), -torch.exp(torch.randn(n)), 0.5) for n in (400, 9000)]\n",
    }
    kernel = catalog.load(str(bring_beside(tmp_path, texts, "step.cpp")))
    found = [(one.name, one.role, one.values[0].partition(":")[0]) for one in kernel.spec.tensors]
    assert found == [("param", "inout", "ordinary"), ("grad", "input", "ordinary"), ("moment", "inout", "range")]
    low, high = map(float, kernel.spec.tensors[2].values[0].split(":")[1:])
    assert low < high < 0
    workload = kernel.spec.workloads[0]
    assert make_case(kernel, workload, "ordinary", {}, "cpu").expected is not None


def test_a_tensor_that_only_values_of_zero_show_to_be_read_is_an_input(tmp_path: Path) -> None:
    """All values of the calls are infinite, and of any others the kernel writes nothing."""
    texts = {
        "any.cu": "void any(int n, float* x, unsigned char* out) {}\n",
        "right.py": "import torch\n\n\ndef any(n, x, out):\n    out.masked_fill_((~torch.isfinite(x)).any(), 1)\n\n\n"
        "def arguments():\n    return [(n, torch.full((n,), torch.inf), torch.zeros(1, dtype=torch.uint8)) for n in (30, 500)]\n",
    }
    x, out = catalog.load(str(bring_beside(tmp_path, texts, "any.cu"))).spec.tensors
    assert (x.role, "infinities" in x.values, out.role) == ("input", True, "inout")


def test_integers_that_stay_as_they_are_where_an_axis_changes_are_not_below_it(tmp_path: Path) -> None:
    """Periods, as of spline bases: a zero among them would be divided by."""
    texts = {
        "wrap.cpp": "#include <cstdint>\nvoid wrap(const int64_t* at, const int64_t* period, int64_t* out, long count) {\n"
        "  for (long i = 0; i < count * 3; ++i) out[i] = at[i] % period[i % 3];\n}\n",
        "right.py": "import torch\n\n\ndef wrap(at, period, count):\n    return at % period\n\n\ndef arguments():\n"
        "    return [(torch.randint(0, 90, (n, 3)), torch.tensor([5, 5, 5]), n) for n in (10, 100, 1000)]\n",
    }
    to = bring_beside(tmp_path, texts, "wrap.cpp")
    assert catalog.load(str(to)).spec.tensors[1].values == ("integers:5:6",)
    assert not [line for line in check(str(to), None, lambda _said: None) if line.kind == "fault"]


@pytest.mark.parametrize(
    ("head", "tail", "entry", "binding"),
    [
        ("using tvm::ffi::TensorView;\nvoid Twice(TensorView out, TensorView x) {}\n", "TVM_FFI_DLL_EXPORT_TYPED_FUNC(twice, Twice);\n", "twice", None),
        ("#include <torch/extension.h>\nvoid Twice(at::Tensor out, at::Tensor x) {}\n", 'PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("twice", &Twice); }\n', "twice", None),
        (
            "#include <torch/extension.h>\nnamespace ns {\nvoid twice(at::Tensor out, at::Tensor x) {}\n",
            'TORCH_LIBRARY_IMPL(engine, CUDA, m) { m.impl("engine::double", TORCH_FN(twice)); }\n}\n', "twice", "ns::twice",
        ),
    ],
)  # fmt: skip
def test_the_entry_is_what_the_file_hands_to_python(
    tmp_path: Path, head: str, tail: str, entry: str, binding: str | None
) -> None:
    """Named so by --symbol, or as C++ does. An operator whose schema stands in another file is not handed on by its own."""
    right = "import torch\n\n\ndef {}(x):\n    return x * 2\n\n\ndef arguments():\n    return [(torch.randn(n),) for n in (30, 500)]\n"
    for symbol in {entry, "Twice" if "Twice" in head else entry}:
        texts = {f"{symbol}.cu": head + tail, "right.py": right.format(symbol)}
        spec = catalog.load(str(bring_beside(tmp_path / symbol, texts, f"{symbol}.cu"))).spec
        assert (spec.entry_name, spec.build.binding or None) == (entry, binding)


def test_an_operator_of_the_stable_abi_whose_schema_is_elsewhere_is_registered() -> None:
    text = "void twice(torch::stable::Tensor& out, const torch::stable::Tensor& x) {\n}\nSTABLE_TORCH_LIBRARY_IMPL(engine, CUDA, m) {}\n"
    assert 'm.def("twice(Tensor(a!) out, Tensor x)' in stable_abi.with_registration(text, "twice", "", "CUDA")


def test_what_no_spec_holds_is_handed_to_a_python_function_by_one_around_it(tmp_path: Path) -> None:
    """A list of sizes and a text of an engine's layer norm; its file stays as it is."""
    texts = {
        "engine_q/__init__.py": "",
        "engine_q/norm.py": "import torch\n\n\ndef norm(x, shape, how, weight, eps):\n    assert shape == [weight.shape[0]] and how == 'rows'\n    v = x.numpy()\n"
        "    v = (v - v.mean(-1, keepdims=True)) / (v.var(-1, keepdims=True) + eps) ** 0.5\n    return torch.from_numpy(v * weight.numpy())\n",
        "right.py": "import torch\n\n\ndef norm(x, shape, how, weight, eps):\n    return torch.nn.functional.layer_norm(x, shape, weight, None, eps)\n\n\n"
        "def arguments():\n    return [(torch.randn(n, m), [m], 'rows', torch.randn(m), 1e-5) for n, m in ((30, 8), (500, 24))]\n",
    }
    to = bring_beside(tmp_path, texts, "engine_q/norm.py")
    assert (to / "include/engine_q/norm.py").read_text() == texts["engine_q/norm.py"]
    text = (to / "baseline.py").read_text()
    assert (
        "def norm(x, weight, eps):" in text
        and "own(x=x, shape=[x.shape[1]], how='rows', weight=weight, eps=eps)" in text
    )
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines
