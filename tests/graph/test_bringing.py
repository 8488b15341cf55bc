"""`run.py bring`: a folder from an engine's test that runs without the engine and without a GPU."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
import torch

from graph.bringing import bring
from graph.checking import check
from harness.capture.extents import Extents
from harness.capture.signature import find_headers, read_function
from harness.capture.source import CaptureError
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import Scalar, Size
from tests.graph.checkout import write_texts

KERNEL = """
#include "engine/number.h"
namespace engine {
template <typename T>
static void add_norm(T* __restrict__ out, T* residual, const T* x, const T* w, float epsilon, int rows, int columns) {
  for (int row = 0; row < rows; ++row) {
    double total = 0;
    for (int i = 0; i < columns; ++i) {
      const T sum = x[row * columns + i] + residual[row * columns + i];
      residual[row * columns + i] = sum;
      total += square(sum);
    }
    const T scale = 1 / std::sqrt(T(total / columns) + epsilon);
    for (int i = 0; i < columns; ++i) out[row * columns + i] = residual[row * columns + i] * scale * w[i];
  }
}
}
"""
TEST = """
import pytest
import torch
import torch
import some_engine_that_is_not_here.ops as ops
from some_engine_that_is_not_here.platform import on_gpu


class Norm(torch.nn.Module):
    def __init__(self, w):
        super().__init__()
        self.w = w

    def forward(self, x, residual):
        x = x + residual
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * self.w, x


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("hidden", [32, 80])
@pytest.mark.parametrize("tokens", [1, 7])
def test_add_norm(tokens, hidden):
    x = torch.randn(tokens, hidden, device="cuda")
    residual = torch.randn_like(x)
    w = torch.ones(hidden, device="cuda") * 0.5 + torch.rand(hidden).cuda()
    expected, expected_residual = Norm(w)(x, residual)
    ours = residual.clone()
    out = torch.zeros_like(x)
    ops.add_norm(out, ours, x, w, 1e-5)
    torch.testing.assert_close(out, expected, atol=1e-3, rtol=1e-3)
    torch.testing.assert_close(ours, expected_residual)
"""


@pytest.fixture
def engine(tmp_path: Path) -> Path:
    (tmp_path / "engine").mkdir()
    (tmp_path / "pyproject.toml").write_text("")
    (tmp_path / "engine" / "number.h").write_text(
        "#include <cmath>\ntemplate <typename T> T square(T x) { return x * x; }\n"
    )
    (tmp_path / "norm.cpp").write_text(KERNEL)
    (tmp_path / "test_norm_of_an_engine.py").write_text(TEST)
    return tmp_path


def test_a_test_of_an_engine_becomes_a_folder_that_checks(engine: Path) -> None:
    to = engine / "made"
    said = list(bring(f"{engine}/test_norm_of_an_engine.py::test_add_norm", engine / "norm.cpp", "add_norm", to))
    assert any("some_engine_that_is_not_here cannot be imported" in one for one in said), said
    kernel = catalog.load(str(to))
    roles = {tensor.name: tensor.role for tensor in kernel.spec.tensors}
    assert roles == {"out": "output", "residual": "inout", "x": "input", "w": "input"}
    assert [tensor.shape for tensor in kernel.spec.tensors] == [("tokens", "hidden")] * 3 + [("hidden",)]
    assert [a.name for a in kernel.spec.arguments if isinstance(a, Scalar)] == ["epsilon"]
    assert (
        kernel.spec.build.binding["float32"] == "engine::add_norm<float>(out, residual, x, w, epsilon, tokens, hidden)"
    )
    assert (to / "baseline.cpp").read_text() == KERNEL
    assert "rows is taken for tokens, by its name" in said, said
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines
    assert any("computes what the reference says" in line.said for line in lines), lines


def test_a_test_that_calls_something_else_says_what(engine: Path) -> None:
    with pytest.raises(
        KernelError, match="no call of other was seen .* it calls some_engine_that_is_not_here.ops.add_norm"
    ):
        list(
            bring(
                f"{engine}/test_norm_of_an_engine.py::test_add_norm",
                engine / "norm.cpp",
                "add_norm",
                engine / "made",
                function="other",
            )
        )


def copy_until_full(_source: Path, to: Path, **_named: object) -> None:
    (to / "spec.py").write_text("half of it")
    raise shutil.Error([("spec.py", str(to / "spec.py"), "[Errno 28] No space left on device")])


def test_a_function_with_arguments_becomes_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "right.py").write_text(
        "import torch\n\n\ndef scaled(x, scale):\n    x.mul_(scale)\n\n\ndef arguments():\n"
        "    return [(torch.randn(n, 8), 0.5) for n in (3, 200)]\n"
    )
    (tmp_path / "scale.cpp").write_text(
        'extern "C" void scale(float* x, float scale, long n);\nextern "C" void scale(float* x, float scale, long n) {\n  for (long i = 0; i < 8 * n; ++i) x[i] *= scale;\n}\n'
    )
    to = tmp_path / "made"
    given = f"{tmp_path}/right.py:scaled", tmp_path / "scale.cpp", "scale", to
    with monkeypatch.context() as patched:
        patched.setattr("graph.bringing.folder.shutil.copytree", copy_until_full)
        with pytest.raises(OSError, match=re.escape(str(to))):
            list(bring(*given, arguments=f"{tmp_path}/right.py:arguments"))
    assert not to.exists() and not list(tmp_path.glob(".made*"))
    said = list(bring(*given, arguments=f"{tmp_path}/right.py:arguments"))
    spec = catalog.load(str(to)).spec
    assert [(a.name, type(a).__name__) for a in spec.arguments] == [
        ("x", "Tensor"),
        ("scale", "Scalar"),
        ("n", "Scalar"),
    ] and said
    assert spec.tensors[0].role == "inout" and spec.tensors[0].shape == ("x_0", "8")


@pytest.mark.parametrize(
    ("last", "is_said"),
    [
        ("(y.to(x.dtype) * w)", True),
        ("(y.to(x.dtype).float() + w).to(x.dtype)", True),
        ("(y * w.float()).to(x.dtype)", False),
    ],
)
def test_a_rounding_before_the_last_step_is_said(tmp_path: Path, last: str, is_said: bool) -> None:
    (tmp_path / "right.py").write_text(
        "import torch\n\n\ndef scaled(x, w, out):\n    y = x.float() / x.float().abs().amax(-1, True)\n"
        f"    out.copy_({last})\n\n\ndef arguments():\n"
        "    return [(torch.randn(n, 8).bfloat16(), torch.randn(8).bfloat16(), torch.empty(n, 8).bfloat16()) for n in (3, 200)]\n"
    )
    (tmp_path / "scale.cpp").write_text(
        "#include <stdint.h>\nvoid scaled(const uint16_t* x, const uint16_t* w, uint16_t* out, long n) {}\n"
    )
    right = f"{tmp_path}/right.py"
    said = bring(f"{right}:scaled", tmp_path / "scale.cpp", "scaled", tmp_path / "made", arguments=f"{right}:arguments")
    assert any("take `dtype`" in one for one in said) == is_said


def test_integers_all_over_their_dtype_are_bits(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(
        "import torch\n\n\ndef masked(x, mask):\n    x.mul_((mask & 1).to(x.dtype))\n\n\ndef arguments():\n"
        "    return [(torch.randn(n), torch.randint(-2**31, 2**31, (n,), dtype=torch.int64).int()) for n in (300, 2000)]\n"
    )
    (tmp_path / "mask.cpp").write_text("void masked(float* x, const int* mask, long n) {}\n")
    right = f"{tmp_path}/right.py"
    list(bring(f"{right}:masked", tmp_path / "mask.cpp", "masked", tmp_path / "made", arguments=f"{right}:arguments"))
    assert catalog.load(str(tmp_path / "made")).spec.tensors[1].values == ("bits",)


WRITES = """
import torch


def right(out, kept, x, slots, scale, count):
    out.copy_(x * scale)  # only written
    kept[slots] = x  # some of it stays


def arguments():
    return [
        (torch.empty(n, 8), torch.randn(m, 8), torch.randn(n, 8), torch.randperm(m)[:n], 0.5, n)
        for n, m in ((300, 700), (30, 50))
    ]
"""


def test_what_is_only_written_is_an_output_and_what_keeps_some_of_it_is_not(tmp_path: Path) -> None:
    (tmp_path / "writes.py").write_text(WRITES)
    (tmp_path / "writes.cpp").write_text(
        "#include <cstdint>\nvoid put(float* out, float* kept, const float* x, const int64_t* slots, float scale, int count) {\n"
        "  for (int i = 0; i < 8 * count; ++i) out[i] = x[i] * scale;\n"
        "  for (int i = 0; i < 8 * count; ++i) kept[slots[i / 8] * 8 + i % 8] = x[i];\n}\n"
    )
    to = tmp_path / "made"
    list(
        bring(
            f"{tmp_path}/writes.py:right",
            tmp_path / "writes.cpp",
            "put",
            to,
            arguments=f"{tmp_path}/writes.py:arguments",
        )
    )
    assert [one.role for one in catalog.load(str(to)).spec.tensors] == ["output", "inout", "input", "input"]
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines


GATHER = """
import pytest
import torch
import torch
from some_engine_that_is_not_here import gather_columns
from tests.helpers import FACTOR

if not hasattr(torch.ops._C, "gather_columns"):
    pytest.skip(reason="not on this platform", allow_module_level=True)


@pytest.mark.parametrize("shape", [(3, 40), (5, 64)])
def test_gather(a_fixture_of_the_engines, shape):
    fused = torch.randn(shape[0], 3 * shape[1]) * FACTOR
    x, order = fused[:, shape[1] : 2 * shape[1]], torch.randperm(shape[1])
    torch.testing.assert_close(gather_columns(x, order), x[:, order])
"""


def test_tests_with_a_package_conftest_and_slices_of_their_own(tmp_path: Path) -> None:
    """Their package is named `tests` as this one is, their conftest.py needs the engine, and they skip themselves without it."""
    inner = tmp_path / "tests" / "kernels"
    inner.mkdir(parents=True)
    (tmp_path / "tests" / "__init__.py").write_text("")
    (tmp_path / "tests" / "helpers.py").write_text("FACTOR = 2.0\n")
    (tmp_path / "tests" / "conftest.py").write_text("import some_engine_that_is_not_here\n")
    (inner / "test_gather.py").write_text(GATHER)
    (tmp_path / "gather.cpp").write_text(
        "void gather_columns(float* out, const float* x, const long* order, int rows, int columns, long stride, float* bias) {\n"
        "  for (int i = 0; i < rows; ++i)\n"
        "    for (int k = 0; k < columns; ++k) out[i * columns + k] = x[i * stride + order[k]];\n}\n"
    )
    to = tmp_path / "made"
    said = list(bring(f"{inner}/test_gather.py::test_gather", tmp_path / "gather.cpp", "gather_columns", to))
    spec = catalog.load(str(to)).spec
    x = next(tensor for tensor in spec.tensors if tensor.name == "x")
    strides = {spec.strides(x, workload.axes) for workload in spec.workloads}
    assert strides == {(120, 1), (192, 1)} and x.strides[1] == "1", (x, said)
    assert "bias is a pointer that no call gives: it is null (build.binding)" in said
    assert "order[k]" in (to / "baseline.cpp").read_text() and "nullptr" in spec.build.binding
    import tests

    assert "helpers.py" not in {path.name for path in Path(tests.__path__[0]).glob("*.py")}


def test_a_host_function_whose_work_stands_in_another_file(tmp_path: Path) -> None:
    (tmp_path / "right.py").write_text(
        "import torch\n\n\ndef doubled(x):\n    return x * 2\n\n\ndef arguments():\n    return [(torch.randn(n),) for n in (30, 2000)]\n"
    )
    (tmp_path / "launch").mkdir()
    (tmp_path / "launch" / "work.cpp").write_text(
        "void work(float* out, const float* x, long n) {\n  for (long i = 0; i < n; ++i) out[i] = 2 * x[i];\n}\n"
    )
    (tmp_path / "host.cpp").write_text(
        "void work(float* out, const float* x, long n);\nvoid doubled(float* out, const float* x, long n) { work(out, x, n); }\n"
    )
    to = tmp_path / "made"
    given = {"arguments": f"{tmp_path}/right.py:arguments", "sources": (tmp_path / "launch" / "work.cpp",)}
    list(bring(f"{tmp_path}/right.py:doubled", tmp_path / "host.cpp", "doubled", to, **given))
    kernel = catalog.load(str(to))
    assert kernel.spec.build.sources == ("work.cpp",)
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines
    assert any("computes what the reference says" in line.said for line in lines), lines


@pytest.mark.parametrize("suffix", [".c", ".cpp"])
def test_a_function_whose_pointers_are_to_structs_and_not_const_and_whose_sizes_are_capitals(
    tmp_path: Path, suffix: str
) -> None:
    (tmp_path / "right.py").write_text(
        "import torch\n\n\ndef sums(inp, B, T, dtype):\n    return inp.view(B, T, 2).to(dtype).sum(-1)\n\n\n"
        "def arguments():\n"
        "    return [(torch.randint(0, 9, (b, 2 * t), dtype=torch.uint8), b, t, torch.float32) for b, t in ((1, 40), (3, 17), (40, 300))]\n"
    )
    (tmp_path / f"own{suffix}").write_text(
        "#include <stdint.h>\n#include <stdlib.h>\ntypedef struct { uint8_t low, high; } pair;\n"
        "void sums(float *out, pair *inp, int B, int T) {\n"
        f"    float *row = {'' if suffix == '.c' else '(float *)'}malloc(T * sizeof(float));\n"
        "    for (int b = 0; b < B; b++) {\n        for (int t = 0; t < T; t++) row[t] = inp[b * T + t].low + inp[b * T + t].high;\n"
        "        for (int t = 0; t < T; t++) out[b * T + t] = row[t];\n    }\n    free(row);\n}\n"
    )
    to, given = tmp_path / "made", {"arguments": f"{tmp_path}/right.py:arguments"}
    list(bring(f"{tmp_path}/right.py:sums", tmp_path / f"own{suffix}", "sums", to, **given))
    kernel = catalog.load(str(to))
    assert kernel.spec.axes == ("b", "t") and kernel.spec.build.language == ("c" if suffix == ".c" else "c++")
    lines = list(check(str(to), None, lambda _said: None))
    assert not [line for line in lines if line.kind == "fault"], lines
    assert any("computes what the reference says" in line.said for line in lines), lines


@pytest.mark.parametrize(
    ("text", "symbol", "names"),
    [
        ("void f(int a);\nvoid f(const float* a, int b = 3) {}", "f", ["a", "b"]),
        ("struct A { static void run(int no) {} };\ntemplate <int N, typename T>\nstruct B {\n  static void run(tvm::ffi::TensorView x) {}\n};", "B<3, half>::run", ["x"]),
        ("template <typename T>\n__global__ void __launch_bounds__(256) k(T *__restrict__ y, const T x[], dim3 g) {\n}", "k", ["y", "x", "g"]),
        ("template <>\nvoid f<float>(const float* x, int n) { k<float><<<1, 1>>>(x); }\nvoid g() { f<float>(0, 1); }", "f", ["x", "n"]),
        ('#define OP(T, NAME) \\\n  extern "C" __global__ void NAME##_f32( \\\n  const T *x, int n) { run<T>(x, n); }\nOP(float, norm)', "norm_f32", ["x", "n"]),
        ('void g() { f(1); }\nextern "C" {\nvoid f(std::pair<int, int> p, float* q = nullptr) { }\n}', "f", ["p", "q"]),
    ],
)  # fmt: skip
def test_parameters_of_functions(text: str, symbol: str, names: list[str]) -> None:
    assert [one.name for one in read_function(text, symbol).parameters] == names


def test_a_symbol_without_a_body_is_refused() -> None:
    with pytest.raises(CaptureError, match="no function f with a body"):
        read_function("void f(int a);", "f")


def test_headers_are_followed_through_the_checkout(tmp_path: Path) -> None:
    texts = {"csrc/k/a.cu": '#include "b.h"\n#include "../c.h"\n#include <lib/d.cuh>\n#include <vector>\n', "csrc/k/b.h": "", "csrc/c.h": "", "include/lib/d.cuh": '#include "e.cuh"\n', "include/lib/e.cuh": "", "setup.py": ""}  # fmt: skip
    write_texts(tmp_path, texts)
    found = find_headers(tmp_path / "csrc/k/a.cu")
    assert set(found.files) == {"csrc/k/b.h", "csrc/c.h", "include/lib/d.cuh", "include/lib/e.cuh"}
    assert set(found.folders) == {"csrc/k", "include"} and found.missing == ("vector",)


def test_sizes_are_expressed_by_few_axes() -> None:
    extents = Extents({"tokens": (1, 7), "q": (8, 4), "k": (2, 4), "d": (64, 128)}, 2)
    assert extents.take("x_0", (1, 7)) == "tokens"
    assert extents.take("x_1", (12 * 64, 12 * 128)) == "(q + 2*k)*d"
    assert extents.take("y_1", (512, 512)) == "512" and extents.take("z_0", (2, 8)) == "tokens + 1"
    assert not any(isinstance(one, Size) for one in extents.axes)


def test_one_less_than_another_size_is_preferred_to_a_part_of_a_third() -> None:
    """pytorch_scatter's sums by row pointers, where every example has four entries a row."""
    extents = Extents({}, 2)
    assert extents.take("src_0", (400, 40000)) == "src_0" and extents.take("indptr_0", (101, 10001)) == "indptr_0"
    assert extents.take("out_0", (100, 10000)) == "indptr_0 - 1"
    assert extents.take("parts", (200, 20000)) == "src_0//2"


SCALED = """#include <torch/extension.h>
namespace engine {
at::Tensor scaled_sum(at::TensorList given, at::ScalarType out_dtype, const std::string& mode, at::IntArrayRef shape,
                      const std::optional<at::Tensor>& bias, std::optional<bool> fast, double scale, bool both = true) {
  TORCH_CHECK(mode == "sum");
  return at::add(given[0], given[1]).mul(scale).view(shape).to(out_dtype);
}
}
"""


def test_dtypes_texts_and_lists_become_a_call(tmp_path: Path) -> None:
    """What no spec holds is written into build.binding, and into the reference."""
    (tmp_path / "right.py").write_text(
        "import torch\n\n\ndef scaled_sum(given, out_dtype, mode, shape, bias, scale):\n"
        "    return (sum(given) * scale).view(shape).to(out_dtype)\n\n\n"
        "def arguments():\n"
        "    return [([torch.randn(n, 30), torch.randn(n, 30)], torch.float32, 'sum', (n, 30), None, 0.5) for n in (4, 70000)]\n"
    )
    (tmp_path / "scaled.cpp").write_text(SCALED)
    made = tmp_path / "made"
    target, arguments = f"{tmp_path / 'right.py'}:scaled_sum", f"{tmp_path / 'right.py'}:arguments"
    doubts = list(bring(target, tmp_path / "scaled.cpp", "engine::scaled_sum", made, arguments=arguments))
    kernel = catalog.load(str(made))
    first = next(iter(kernel.spec.axes))
    assert kernel.spec.build.binding == (
        f'engine::scaled_sum(given, at::ScalarType::Float, "sum", {{{first}, 30}}, std::nullopt, std::nullopt, scale)'
    )
    assert [(t.name, t.in_list) for t in kernel.spec.tensors] == [
        ("given_0", "given"),
        ("given_1", "given"),
        ("out", ""),
    ]
    assert any("fast is not given by the calls" in doubt for doubt in doubts), doubts
    inputs = {f"given_{at}": torch.ones(3, 30) for at in (0, 1)}
    assert kernel.reference_in("float64", **inputs, scale=0.5, **{first: 3})["out"].eq(1).all()


def test_what_one_number_is_divided_by_is_a_quotient() -> None:
    extents = Extents({"groups": (1, 8), "rows": (5, 7)}, 2)
    assert extents.take("rows", (5, 7)) == "rows" and extents.express((256, 32)) is None
    assert extents.take("groups", (1, 8)) == "groups" and extents.express((256, 32)) == "256//groups"


FROZEN = {
    "pyproject.toml": "",
    "engine_y/__init__.py": "from engine_y.ops import shifted, scaled, doubled\n",
    "engine_y/ops.py": """
import torch


def shifted(x, starts, out):
    raise RuntimeError("no GPU")


def scaled(x, scale, out):
    raise RuntimeError("no GPU")


def doubled(x, out):
    raise RuntimeError("no GPU")
""",
    "tests/test_y.py": """
import pytest
import torch
from engine_y import doubled, scaled, shifted


@pytest.mark.parametrize("rows", [40, 60])
def test_shifted(rows):
    x, starts = torch.randn(rows, 8, device="cuda"), torch.tensor([0, 20, rows], device="cuda")
    expected = x.clone()
    expected[20:] = expected[20:] * 2
    out = torch.empty_like(x)
    shifted(x, starts, out)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("rows,scale", [(40, 0.5), (60, 0.25)])
def test_scaled(rows, scale):
    x, held = torch.randn(rows, 8, device="cuda"), torch.tensor([scale], device="cuda")
    out = torch.empty_like(x)
    scaled(x, held, out)
    torch.testing.assert_close(out, (x * scale).to(torch.float8_e4m3fn).float())


def test_doubled():
    x = torch.randn(40, 96, device="cuda")
    out = torch.empty_like(x)
    doubled(x, out)
    torch.testing.assert_close(out, (x.view(40, 3, 32) * 2).view(40, 96))
""",
}


@pytest.fixture
def frozen(tmp_path: Path) -> Path:
    write_texts(tmp_path, FROZEN)
    return tmp_path


def test_a_reference_that_would_hold_one_calls_numbers_is_refused(frozen: Path) -> None:
    list(bring(f"{frozen}/tests/test_y.py::test_shifted", frozen / "engine_y/ops.py", "shifted", frozen / "made"))
    text = (frozen / "made/reference.py").read_text()
    assert "NotImplementedError" in text and "the test reads starts into Python" in text, text


def test_a_scale_that_the_kernel_gets_as_a_tensor_is_read_from_it(frozen: Path) -> None:
    list(bring(f"{frozen}/tests/test_y.py::test_scaled", frozen / "engine_y/ops.py", "scaled", frozen / "made"))
    text = (frozen / "made/reference.py").read_text()
    assert "scale.reshape(())" in text and "NotImplementedError" not in text, text
    lines = [line for line in check(str(frozen / "made"), None, lambda _said: None) if line.what == "reference"]
    assert [line.kind for line in lines] == ["right"], lines  # float8 is no dtype that torch promotes


def test_a_size_at_which_alone_the_steps_work_is_a_number(frozen: Path) -> None:
    said = list(
        bring(f"{frozen}/tests/test_y.py::test_doubled", frozen / "engine_y/ops.py", "doubled", frozen / "made")
    )
    spec = catalog.load(str(frozen / "made")).spec
    assert [tensor.shape[1] for tensor in spec.tensors] == ["96", "96"], spec.tensors
    lines = [line for line in check(str(frozen / "made"), None, lambda _said: None) if line.what == "reference"]
    assert [line.kind for line in lines] == ["right"], (said, lines)


def test_every_dtype_keeps_a_workload(frozen: Path) -> None:
    text = FROZEN["tests/test_y.py"].replace(
        '"rows,scale", [(40, 0.5), (60, 0.25)]', '"rows,scale", [(n, 0.5) for n in range(40, 84)] + [(99, 0.25)]'
    )
    text = text.replace(
        "torch.randn(rows, 8,", "torch.randn(rows, 8, dtype=torch.float16 if rows == 44 else torch.float32,"
    )
    text = text.replace(".to(torch.float8_e4m3fn).float()", "")
    (frozen / "tests/test_y.py").write_text(text)
    list(bring(f"{frozen}/tests/test_y.py::test_scaled", frozen / "engine_y/ops.py", "scaled", frozen / "made"))
    spec = catalog.load(str(frozen / "made")).spec
    assert set(spec.dtypes) == {workload.dtype for workload in spec.workloads} == {"float16", "float32"}
