"""A winner goes back into the user's own file as a diff, in the file's form."""

from __future__ import annotations

import importlib
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from compiler.compile import source
from harness.backends import stable_abi
from harness.device import cuda_home
from harness.evaluate import Evaluator
from harness.export import patch
from harness.export.dropin import ExportError
from harness.judge.in_model import ModelGain, Shape, StepGain
from harness.records import Comparison, Interval
from harness.report.pull_request import markdown
from harness.store import Store
from kernels import catalog
from kernels.spec import Scalar, Size, Spec, Tensor, Workload
from tests.harness.report.example import RESULT
from tests.harness.test_backends_cute_dsl import TEXT as CUTE_DSL
from tests.harness.test_backends_forms import STABLE, TVM_FFI

KERNEL = catalog.load("silu_and_mul")
SPEC = KERNEL.spec
PLAIN = KERNEL.baseline("cpu")[1].read_text()


def applied(tmp_path: Path, before: dict[str, str], after: dict[str, str]) -> dict[str, str]:
    """What `git apply` makes of the diff."""
    for name, text in before.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    subprocess.run(
        ["git", "apply", "--whitespace=nowarn", "-"],
        input=patch.diff(before, after),
        text=True,
        cwd=tmp_path,
        check=True,
    )
    return {name: (tmp_path / name).read_text() for name in after}


@pytest.mark.parametrize("end", ["\n", ""])
def test_a_winner_in_the_files_own_form_replaces_its_text(tmp_path: Path, end: str) -> None:
    own = "// a\n// b\nint f();" + end
    after = patch.patch_files(SPEC, own, own, own.replace("b", "c"), "csrc/k.cu", "cuda")
    assert applied(tmp_path, {"csrc/k.cu": own}, after) == {"csrc/k.cu": own.replace("b", "c")}


def test_line_ends_stay_as_they_are_on_disk(tmp_path: Path) -> None:
    before = "// a\r\n// form\x0cfeed\r\nint f();\n// end\r\n"
    after = before.replace("\r\n", "\n").replace("// end", "// c\n// end")
    (tmp_path / "k.cu").write_bytes(before.encode())
    made = patch.diff({"k.cu": before}, {"k.cu": after})
    subprocess.run(["git", "apply", "--whitespace=nowarn", "-"], input=made.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "k.cu").read_bytes().decode() == before.replace("// end", "// c\r\n// end")


@pytest.mark.parametrize(("own", "name"), [(STABLE, "act.cpp"), (TVM_FFI, "act.cuh")])
def test_a_plain_winner_is_called_from_the_host_function_and_nothing_else_changes(
    tmp_path: Path, own: str, name: str
) -> None:
    build = SPEC.build.model_validate({"binding": {"float32": "SiluAndMul<float>::run"}} if own is TVM_FFI else {})
    after = patch.patch_files(SPEC.model_copy(update={"build": build}), own, own, PLAIN, name, "cpu")
    assert set(after) == {name, "act.astrolabe.h"}
    assert "out.data_ptr() != input.data_ptr()" in after[name]  # engines write in place
    assert applied(tmp_path, {name: own}, after) == after
    removed = [
        row for row in patch.diff({name: own}, after).splitlines() if row.startswith("-") and not row.startswith("---")
    ]
    assert not removed


@pytest.mark.parametrize(
    ("binding", "asked", "absent"),
    [
        ("SiluAndMul<float, 4, true>::run(input, out, std::nullopt, 2, Mode::fast)", ("WIDTH == 4", "kUsePDL"), "kUsePDL =="),
        ("SiluAndMul<float, 4, true>::run(input, out, std::nullopt, 2, Mode::fast)", ("!mask.has_value()", "shift == 2", "mode == Mode::fast"), "T =="),
        ("SiluAndMul<float>::run(input, out, {tokens, 3})", ("WIDTH == 8", "mask.size() == 2", "mask[0] == tokens_", "mask[1] == 3", "shift == 1"), "!mask"),
    ],
)  # fmt: skip
def test_what_the_binding_writes_into_a_call_is_asked_of_it(binding: str, asked: tuple[str, ...], absent: str) -> None:
    """Numbers of the struct's template and arguments that no spec has: elsewhere the winner would be wrong."""
    own = TVM_FFI.replace(
        "template <typename T>\nstruct", "template <typename T, int WIDTH = 8, bool kUsePDL = false>\nstruct"
    )
    own = own.replace(
        "TensorView out)", "TensorView out, tvm::ffi::Optional<List> mask, int shift = 1, Mode mode = Mode::fast)"
    )
    spec = SPEC.model_copy(update={"build": SPEC.build.model_validate({"binding": {"float32": binding}})})
    after = patch.patch_files(spec.model_copy(update={"dtypes": ("float32",)}), own, own, PLAIN, "act.cuh", "cpu")
    (line,) = [row for row in after["act.cuh"].splitlines() if "input.dtype() ==" in row]
    assert all(one in line for one in asked if one != "kUsePDL")
    assert absent not in line


def test_what_cannot_be_compared_is_no_diff() -> None:
    own = TVM_FFI.replace("TensorView out)", "TensorView out, Table table)")
    build = SPEC.build.model_validate({"binding": {"float32": "SiluAndMul<float>::run(input, out, tables[0])"}})
    spec = SPEC.model_copy(update={"build": build, "dtypes": ("float32",)})
    with pytest.raises(ExportError, match="is nothing that can be compared"):
        patch.patch_files(spec, own, own, PLAIN, "act.cuh", "cpu")


@pytest.mark.parametrize(
    ("own", "winner", "said"),
    [
        (STABLE, None, "is not the text that the winner was measured against"),
        ("import torch\n", PLAIN, "it defines no function silu_and_mul"),
        (STABLE.replace("void silu_and_mul", "int silu_and_mul"), PLAIN, "returns int"),
        (STABLE.replace("silu_and_mul", "other"), PLAIN, "0 functions silu_and_mul take tensors"),
        (STABLE.replace("Tensor& out,", "Tensor& a, int64_t b, int64_t c, int64_t d, Tensor& out,").replace(" input)", " x)"), PLAIN, "not the spec's arguments"),
    ],
)  # fmt: skip
def test_what_cannot_be_patched_is_said(own: str, winner: str | None, said: str) -> None:
    with pytest.raises(ExportError, match=said):
        patch.patch_files(SPEC, own, own if winner else f"{own} ", winner or PLAIN, "f.cpp", "cpu")


TWICE = Spec.model_validate(
    {
        "name": "twice", "summary": "out = 2 x", "axes": ("rows", "columns"), "dtypes": ("float32", "float16"),
        "arguments": (
            Tensor(name="x", role="input", shape=("rows", "columns")), Tensor(name="out", role="output", shape=("rows", "columns")),
            Scalar(name="by", value=2.0), Size(name="rows"), Size(name="columns"),
        ),
        "workloads": tuple(Workload(axes={"rows": 2, "columns": 8}, dtype=t) for t in ("float32", "float16")),
    }
)  # fmt: skip
PARAMETERS = "const {0}* x, {0}* out, float by, int64_t rows, int64_t columns, cudaStream_t stream"
TWICE_WINNER = "#include <cuda_fp16.h>\n#include <stdint.h>\n#define WIDTH 8\n" + 'extern "C" {\nint enable_pdl = 0;\n}\n' + "".join(
    f'extern "C" void twice_{dtype}({PARAMETERS.format(kind)}) {{ (void)WIDTH; }}\n' for dtype, kind in (("float32", "float"), ("float16", "__half"))
)  # fmt: skip
KERNEL_TEXT = """#include <cuda_fp16.h>
#ifdef DEBUG
#include <stdio.h>
#endif
namespace engine {
template <typename T, int WIDTH>
__global__ void twice_kernel(const T* x, T* out, int n, int stride, float by, const float* scale = nullptr) {
    out[blockIdx.x * stride + threadIdx.x] = x[blockIdx.x * stride + threadIdx.x];
}
"""
LAUNCHES = {
    "a launcher of templates": (
        "template <typename T>\ncudaError_t twice_of(T* out, const T* x, int m, int n, cudaStream_t stream) {  // (m, n)\n"
        "    twice_kernel<T, 4><<<m, n, 0, stream>>>(x, out, n, n, 2.0f);\n    return cudaGetLastError();\n}\n"
        "template cudaError_t twice_of<float>(float*, const float*, int, int, cudaStream_t);\n"
        "template cudaError_t twice_of<__half>(__half*, const __half*, int, int, cudaStream_t);\n}\n",
        {"float32": "engine::twice_of<float>(out, x, rows, columns, stream)", "float16": "engine::twice_of<__half>(out, x, rows, columns, stream)"},
        "if (::astrolabe_twice::launched<T>(out, x, m, n, stream)) return cudaGetLastError();",
    ),
    "a launcher that says whether it takes the arguments": (
        "template <typename T>\nbool twice_of(T* out, const T* x, int m, int n, cudaStream_t stream) {\n    if (n % 8) return false;\n"
        "    twice_kernel<T, 4><<<m, n, 0, stream>>>(x, out, n, n, 2.0f);\n    return true;\n}\n}\n",
        {"float32": "engine::twice_of<float>(out, x, rows, columns, stream)", "float16": "engine::twice_of<__half>(out, x, rows, columns, stream)"},
        "if (::astrolabe_twice::launched<T>(out, x, m, n, stream)) return true;",
    ),
    "a launcher of lists, texts and pointers to anything": (
        "}\n#include <string>\n#include <vector>\nnamespace engine {\n"
        'void twice_of(const std::vector<int64_t>& dims, void* out, const void* x, void* s, const std::string& dtype, float by = 2.0f) {\n'
        "    if (dtype == \"float\") twice_kernel<float, 4><<<dims[0], dims[1], 0, (cudaStream_t)s>>>((const float*)x, (float*)out, dims[1], dims[1], by);\n}\n}\n",
        {t: f'engine::twice_of({{rows, columns}}, out, x, stream, "{k}")' for t, k in (("float32", "float"), ("float16", "half"))},
        "if (::astrolabe_twice::launched(dims, out, x, s, dtype, by)) return;",
    ),
    "a kernel launched by brackets": (
        "void go(const void* a, void* b, int m, int n, bool half, cudaStream_t s) {\n    if (half)\n"
        "        twice_kernel<__half, 4><<<dim3(m), n, 0, s>>>((const __half*)a, (__half*)b, n, n, 2.0f);\n    else\n"
        "        twice_kernel<float, 4><<<m, n, 0, s>>>((const float*)a, (float*)b, n, n, 2.0f);\n}\n}\n",
        {t: f"engine::twice_kernel<{k}, 4><<<rows, 32, 0, stream>>>(x, out, columns, columns, 2.0f)" for t, k in (("float32", "float"), ("float16", "__half"))},
        "if (!::astrolabe_twice::launched<float>((const float*)a, (float*)b, n, n, 2.0f, dim3(m), s))",
    ),
    "a kernel launched by a function": (
        "void go(const float* a, float* b, int m, int n, cudaStream_t s) {\n    cudaLaunchConfig_t config = {};\n    config.gridDim = m;\n"
        "    config.blockDim = n;\n    config.stream = s;\n    (void)cudaLaunchKernelEx(&config, twice_kernel<float, 4>, a, b, n, n, 2.0f, (const float*)nullptr);\n}\n"
        "void other(const float* a, float* b, int m, int n, cudaStream_t s) { twice_kernel<float, 8><<<m, n, 0, s>>>(a, b, n, n, 3.0f); }\n}\n",
        {t: f"engine::twice_kernel<{k}, 4><<<rows, 32, 0, stream>>>(x, out, columns, columns, 2.0f, (const float*)nullptr)" for t, k in (("float32", "float"), ("float16", "__half"))},
        "if (!::astrolabe_twice::launched<float>(a, b, n, n, 2.0f, (const float*)nullptr, dim3(config.gridDim), config.stream))",
    ),
}  # fmt: skip


@pytest.mark.parametrize("how", LAUNCHES)
@pytest.mark.skipif(cuda_home() is None, reason="nvcc is not here")
def test_a_plain_winner_is_launched_where_the_files_own_kernel_is(tmp_path: Path, how: str) -> None:
    text, binding, line = LAUNCHES[how]
    own = KERNEL_TEXT + text
    spec = TWICE.model_copy(update={"build": TWICE.build.model_validate({"binding": binding})})
    after = patch.patch_files(spec, own, own, TWICE_WINNER, "csrc/twice.cu", "cuda")
    assert set(after) == {"csrc/twice.cu", "csrc/twice.astrolabe.cuh"}
    assert applied(tmp_path, {"csrc/twice.cu": own}, after) == after
    added = [
        row[1:].strip()
        for row in patch.diff({"csrc/twice.cu": own}, {"csrc/twice.cu": after["csrc/twice.cu"]}).splitlines()
        if row[:1] in "+-" and row[:3] not in ("+++", "---")
    ]
    assert '#include "twice.astrolabe.cuh"' in added and line in added
    assert re.search(r"\(const void\*\)a\d != \(const void\*\)a\d", after["csrc/twice.astrolabe.cuh"])
    kernel = replace(KERNEL, spec=spec, folder=tmp_path)
    said = patch.compile_patched(kernel, own, after, "csrc/twice.cu", "cuda")
    assert said == "csrc/twice.cu was compiled with the winner, by cuda for sm_90"


def test_a_bare_kernels_grid_is_compared_though_its_arguments_tell_all_sizes() -> None:
    """ggml's norms: a call over three samples has the arguments of one over one, and a view of a few rows the strides of all."""
    kernel = "__global__ void k(const float* x, float* out, int m, int n) {}\n"
    spec = TWICE.model_copy(
        update={"dtypes": ("float32",), "build": TWICE.build.model_validate({"binding": "k<<<rows, 32, 0, stream>>>(x, out, rows, columns)"})}
    )  # fmt: skip
    own = (
        kernel
        + "void go(float* a, float* b, int m, int n, int s, cudaStream_t t) { k<<<dim3(m, 1, s), n, 0, t>>>(a, b, m, n); }\n"
    )
    after = patch.patch_files(spec, own, own, TWICE_WINNER, "f.cu", "cuda")
    assert "launched(a, b, m, n, dim3(dim3(m, 1, s)), t)" in after["f.cu"]
    assert "a4.x == (rows)" in after["f.astrolabe.cuh"] and "a4.z == (1)" in after["f.astrolabe.cuh"]


def test_a_launcher_in_a_header_of_the_files_is_patched_there(tmp_path: Path) -> None:
    header = "#pragma once\ninline void twice_of(float* out, const float* x, int m, int n) {}\n"
    spec = TWICE.model_copy(
        update={"dtypes": ("float32",), "build": TWICE.build.model_validate({"binding": "twice_of(out, x, rows, columns)"})}
    )  # fmt: skip
    winner = '#include <stdint.h>\nextern "C" void twice_float32(const float* x, float* out, float by, int64_t rows, int64_t columns) {}\n'
    own = '#include "include/twice.h"\n'
    after = patch.patch_files(spec, own, own, winner, "twice.cpp", "cpu", {"include/twice.h": header})
    assert set(after) == {"include/twice.h", "include/twice.astrolabe.h"}
    assert "if (::astrolabe_twice::launched(out, x, m, n)) return;" in after["include/twice.h"]
    assert applied(tmp_path, {"include/twice.h": header, "twice.cpp": own}, after) == after
    said = patch.compile_patched(replace(KERNEL, spec=spec, folder=tmp_path), own, after, "twice.cpp", "cpu")
    assert said == "twice.cpp was compiled with the winner, by cpu"


def test_a_file_with_more_than_its_entries_keeps_what_the_winner_has_not() -> None:
    own = PLAIN + "\nvoid other_users() {}\n"
    after = patch.patch_files(SPEC, own, own, PLAIN, "act.cpp", "cpu")
    assert set(after) == {"act.cpp", "act.astrolabe.h"} and "void other_users() {}" in after["act.cpp"]
    assert patch.patch_files(SPEC, PLAIN, PLAIN, PLAIN + "\n", "act.cpp", "cpu") == {"act.cpp": PLAIN + "\n"}


@pytest.mark.parametrize(
    ("text", "binding", "said"),
    [
        ("int f(float* o, const float* x, int m, int n) {}", "f(out, x, rows, columns)", "its launcher returns int"),
        ("void f(float* o, const float* x, int m, int n, P p) {}", "f(out, x, rows, columns, P{columns})", "is nothing that can be compared"),
        ("void f(float* o, const float* x, int n) {}", "f(out, x, columns)", "the size rows is no argument"),
        ("void f(float* o, int m, int n) {}", "f(out, rows, columns)", "the tensor x is no argument"),
        ("void f(float* o, const float* x, int n, int m) {}", "g(out, x, rows, columns)", "neither f.cpp nor a header of its own"),
        ("", "k<<<rows, 1, 0, stream>>>(x, out, columns)", "neither f.cpp nor"),
    ],
)  # fmt: skip
def test_a_call_that_cannot_be_put_in_is_said(text: str, binding: str, said: str) -> None:
    spec = TWICE.model_copy(update={"dtypes": ("float32",), "build": TWICE.build.model_validate({"binding": binding})})
    winner = 'extern "C" void twice_float32(const float* x, float* out, float by, int64_t rows, int64_t columns) {}\n'
    with pytest.raises(ExportError, match=said):
        patch.patch_files(spec, text, text, winner, "f.cpp", "cpu")


RETURNING = """#include <torch/extension.h>
torch::Tensor silu_and_mul(torch::Tensor const& input) {
  auto out = torch::empty({input.size(0), input.size(1) / 2}, input.options());
  return out;
}
"""


PYTHON = """'''Softcap.'''
import torch


def twice(x, out, by=2.0, scale=None, BLOCK=64):
    '''Doubles.'''
    def grid(meta):
        return (1,)
    out.copy_(x * 0)
    return out if scale is None else scale
"""


def test_a_plain_winner_is_called_from_a_python_function_and_taken_where_it_fits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = TWICE.model_copy(update={"dtypes": ("float32",), "name": "twice_of_python", "entry": "twice"})
    winner = (
        "#include <stdint.h>\n"
        'extern "C" void twice_float32(const float* x, float* out, float by, int64_t rows, int64_t columns) {\n'
        "    for (int64_t i = 0; i < rows * columns; ++i) out[i] = by * x[i];\n}\n"
    )
    after = patch.patch_files(spec, PYTHON, PYTHON, winner, "own_twice.py", "cpu")
    assert set(after) == {"own_twice.py", "own_twice_astrolabe.py", "own_twice_astrolabe.cpp"}
    assert applied(tmp_path, {"own_twice.py": PYTHON}, after) == after
    said = patch.compile_patched(replace(KERNEL, spec=spec, folder=tmp_path), PYTHON, after, "own_twice.py", "cpu")
    assert said == "own_twice_astrolabe.cpp was compiled with the winner, by cpu"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "cache"))
    import torch

    twice = importlib.import_module("own_twice").twice
    x, out = torch.randn(2, 8), torch.empty(2, 8)
    assert twice(x, out) is out and torch.equal(out, 2 * x)
    assert twice(x, out, 3.0) is out and torch.equal(out, 3 * x)
    for other in (x.double(), x.t().contiguous().t(), x.clone().requires_grad_()):
        twice(other, torch.empty_like(other.detach()))
        made = torch.ones_like(other.detach())
        twice(other, made)
        assert not made.any(), "its own code goes on"
    twice(x, out, scale=1.0)
    assert not out.any()


def test_a_python_function_that_makes_its_output_is_refused() -> None:
    own = PYTHON.replace("return out if", "return out.clone() if")
    with pytest.raises(ExportError, match="which it makes"):
        patch.patch_files(TWICE.model_copy(update={"dtypes": ("float32",)}), own, own, TWICE_WINNER, "own.py", "cuda")


@pytest.mark.skipif(cuda_home() is None, reason="nvcc is not here")
def test_a_winner_in_cuda_stands_beside_a_file_that_no_nvcc_compiles(tmp_path: Path) -> None:
    winner = KERNEL.baseline("cuda")[1].read_text()
    after = patch.patch_files(SPEC, RETURNING, RETURNING, winner, "act.cpp", "cuda")
    assert (
        list(after) == ["act.cpp", "act.astrolabe.h", "act.astrolabe.cu"]
        and "__global__" not in after["act.astrolabe.h"]
    )
    for name, text in after.items():
        (tmp_path / name).write_text(text)
    subprocess.run(
        ["nvcc", "-c", "-arch=sm_90", "-std=c++17", "act.astrolabe.cu", "-o", "k.o"], cwd=tmp_path, check=True
    )
    called = set(re.findall(r"astrolabe_silu_and_mul::(\w+)\(", after["act.cpp"]))
    held = subprocess.run(
        ["nm", "-C", "--defined-only", "k.o"], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert called and all(re.search(rf" T astrolabe_silu_and_mul::{one}\(", held.stdout) for one in called)
    (tmp_path / "h.cpp").write_text('#include "act.astrolabe.h"\n')
    subprocess.run(
        ["nvcc", "-c", "-std=c++17", "h.cpp", "-o", "h.o"], cwd=tmp_path, check=True
    )  # by the host's compiler


def test_an_extension_that_returns_its_output_returns_the_winners() -> None:
    after = patch.patch_files(SPEC, RETURNING, RETURNING, PLAIN, "act.cpp", "cpu")["act.cpp"]
    assert "auto out_ = at::empty({tokens_, hidden_}, input.options()" in after and "return out_;" in after
    assert "const int64_t hidden_ = input.size(1) / 2;" in after
    optional = re.sub(r"torch::Tensor const& input", "std::optional<at::Tensor> input", RETURNING)
    after = patch.patch_files(SPEC, optional, optional, PLAIN, "act.cpp", "cpu")["act.cpp"]
    assert "if (input.has_value() && (*input).dim() == 2" in after and "(*input).size(1) / 2;" in after, after


def test_a_function_that_the_file_hands_to_python_by_another_name_is_patched(tmp_path: Path) -> None:
    for own, name in (
        (f'{RETURNING.replace(" silu_and_mul(", " Act(")}PYBIND11_MODULE(a, m) {{ m.def("silu_and_mul", &Act); }}\n', "act.cpp"),
        ("void Act(TensorView input, TensorView out) {\n}\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(silu_and_mul, Act);\n", "act.cuh"),
    ):  # fmt: skip
        after = patch.patch_files(SPEC, own, own, PLAIN, name, "cpu")
        assert applied(tmp_path / name, {name: own}, after) == after and "silu_and_mul_fits" in after[name]


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize(("form", "own", "name"), [("torch", RETURNING, "act.cpp"), ("tvm_ffi", TVM_FFI, "act.cpp")])
def test_patched_files_of_tensors_build_in_their_forms(tmp_path: Path, form: str, own: str, name: str) -> None:
    build = SPEC.build.model_validate({"binding": {"float32": "SiluAndMul<float>::run"}} if form == "tvm_ffi" else {})
    spec = SPEC.model_copy(update={"dtypes": ("float32",), "build": build})
    after = patch.patch_files(spec, own, own, PLAIN, name, "cpu")
    assert applied(tmp_path, {name: own}, after) == after
    said = patch.compile_patched(replace(KERNEL, spec=spec, folder=tmp_path), own, after, name, "cpu")
    if "was not compiled here" in said:
        pytest.skip(said)
    assert said.startswith(f"{name} was compiled with the winner, by "), said


def test_a_file_in_cute_dsl_is_replaced_by_its_own_form_alone(tmp_path: Path) -> None:
    faster = CUTE_DSL.replace("256", "128")
    after = patch.patch_files(SPEC, CUTE_DSL, CUTE_DSL, faster, "act.py", "cuda")
    assert applied(tmp_path, {"act.py": CUTE_DSL}, after) == {"act.py": faster}
    with pytest.raises(ExportError, match="is in CuTe DSL, whose @cute.jit function .* calls no other language"):
        patch.patch_files(SPEC, CUTE_DSL, CUTE_DSL, KERNEL.baseline("cuda")[1].read_text(), "act.py", "cuda")


def test_an_extension_that_returns_more_than_the_outputs_is_not_patched() -> None:
    """Nobody has judged what the rest would be, and the caller unpacks as many."""
    more = RETURNING.replace("torch::Tensor silu", "std::vector<torch::Tensor> silu").replace(
        "return out", "return {out, input}"
    )
    with pytest.raises(patch.ExportError, match="returns 2 tensors and the spec has 1 outputs"):
        patch.patch_files(SPEC, more, more, PLAIN, "act.cpp", "cpu")


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_patched_file_builds_in_its_form_and_calls_the_winner(tmp_path: Path) -> None:
    if reason := stable_abi.why_unavailable():
        pytest.skip(reason)
    spec = SPEC.model_copy(
        update={"workloads": tuple(w for w in SPEC.suite("cpu") if w.dtype == "float32")[:2], "dtypes": ("float32",)}
    )
    broken = STABLE.replace("-gate", "-up")  # only the winner is right
    after = patch.patch_files(spec, broken, broken, PLAIN, "act.cpp", "cpu")
    folder = tmp_path / "silu_and_mul"
    folder.mkdir()
    (folder / "act.astrolabe.h").write_text(after["act.astrolabe.h"])
    (folder / "reference.py").write_text((KERNEL.folder / "reference.py").read_text())
    with Evaluator(replace(KERNEL, spec=spec, folder=folder), "cpu", Store(tmp_path / "store")) as evaluator:
        build = evaluator.build(evaluator.store.put(after["act.cpp"]))
        assert build.ok, build.log
        from harness.judge.verification import check_once

        assert not any(check_once(evaluator, build, workload) for workload in spec.workloads)


def test_the_compilers_text_for_a_cpu_compiles_in_a_namespace_of_its_own() -> None:
    """A pack of bfloat16 was stored by a global name (`::to`), which a header beside the user's file has not."""
    kernel = catalog.load("silu_and_mul")
    one = tuple(workload for workload in kernel.spec.workloads if workload.dtype == "bfloat16")
    spec = kernel.spec.model_copy(update={"dtypes": ("bfloat16",), "workloads": one})
    own, reference = kernel.baseline("cpu")[1].read_text(), (kernel.folder / "reference.py").read_text()
    after = patch.patch_files(kernel.spec, own, own, source(spec, reference, device="cpu"), "act.cpp", "cpu")
    assert "act.astrolabe.h" in after
    assert "was compiled" in patch.compile_patched(kernel, own, after, "act.cpp", "cpu", "")


def test_a_winners_function_is_not_taken_for_the_files_own_of_that_name(tmp_path: Path) -> None:
    """Both fit a call in a template whose argument is of a global type."""
    (tmp_path / "half.h").write_text("#pragma once\n#include <stdint.h>\nstruct half_t { uint16_t bits; };\n")
    half = '#include "half.h"\n'
    turn = "inline float to_float(half_t value) { return value.bits; }\n"
    parameters = "const {0}* x, {0}* out, float by, int64_t rows, int64_t columns"
    entry = f'extern "C" void twice_float32({parameters.format("float")})'
    spec = TWICE.model_copy(update={"dtypes": ("float32",)})
    own = f"{half}{turn}{entry} {{ if constexpr (true) {{ out[0] = to_float(half_t{{1}}); }} }}\nvoid other_users() {{}}\n"
    template = "template <typename T> float turned(T value) {\n    if constexpr (sizeof(T) == 2) { return to_float(value); }\n    return 0;\n}\n"
    winner = f"{half}namespace {{\n{turn}{template}}}\n{entry} {{ out[0] = turned(half_t{{1}}); }}\n"
    after = patch.patch_files(spec, own, own, winner, "twice.cpp", "cpu")
    for name, text in after.items():
        (tmp_path / name).write_text(text)
    said = subprocess.run(
        ["g++", "-std=c++17", "-fsyntax-only", "twice.cpp"], cwd=tmp_path, capture_output=True, text=True
    )
    assert said.returncode == 0, said.stderr


def test_a_pull_requests_text_has_every_size_and_the_loss() -> None:
    text = markdown(RESULT, "diff --git a/k b/k\n", "k was compiled")
    assert text.count("\n| ") == 1 + len(RESULT.workloads) and "worst" in text and "```diff" in text
    assert all(row.label in text for row in RESULT.workloads)
    legend = next(line for line in text.splitlines() if line.startswith("*Times are of one call"))
    shown = {"cold:": "cold", "GB/s:": "moved_bytes", "of speed of light:": "light", "held out:": "held_out"}
    assert "99 of 100" in legend
    for said, name in shown.items():
        has = any(row.cache == "cold" if name == "cold" else getattr(row, name) for row in RESULT.workloads)
        assert (said in legend) == has, said


def test_a_pull_requests_text_has_the_step_of_a_model_where_it_was_measured() -> None:
    ratio = Interval(median=1.03, low=1.02, high=1.04)
    step = StepGain(
        name="decode", baseline_us=812, winner_us=788, speedup=ratio, comparison=Comparison.FASTER, share=0.074, saved_us=24, calls=64
    )  # fmt: skip
    gain = ModelGain(kernels=("silu_and_mul",), shape=Shape(), dtype="bfloat16", captured=True, steps=(step,))
    text = markdown(RESULT.model_copy(update={"model": gain}), "", "")
    assert "- decode step of a model of" in text and "1.030x (1.020 – 1.040)" in text
    assert "step of a model" not in markdown(RESULT.model_copy(update={"model": None}), "", "")


def test_a_header_that_the_file_needs_and_is_not_here_is_no_fault_of_the_patch(tmp_path: Path) -> None:
    own = "#include <of_another_machine.h>\n" + PLAIN
    said = patch.compile_patched(KERNEL, own, {"act.cpp": own + "\n"}, "act.cpp", "cpu")
    assert said == "it was not compiled here: act.cpp needs of_another_machine.h, which is not here"
    with pytest.raises(patch.ExportError, match="does not compile"):
        patch.compile_patched(KERNEL, PLAIN, {"act.cpp": own}, "act.cpp", "cpu")


def test_a_size_that_no_shape_tells_is_the_python_functions_own_parameter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = TWICE.model_dump()
    arguments = (*TWICE.arguments, Size(name="group"))
    workloads = (Workload(axes={"rows": 2, "columns": 8, "group": 4}, dtype="float32"),)
    spec = Spec.model_validate(
        {
            **held, "axes": ("rows", "columns", "group"), "dtypes": ("float32",), "name": "twice_in_groups", "entry": "twice",
            "arguments": arguments, "workloads": workloads,
        }
    )  # fmt: skip
    own = "import torch\n\n\ndef twice(x, out, by, rows, columns, group):\n    out.zero_()\n"
    winner = (
        "#include <stdint.h>\n"
        'extern "C" void twice_float32(const float* x, float* out, float by, int64_t rows, int64_t columns, int64_t group) {\n'
        "    for (int64_t i = 0; i < rows * columns; ++i) out[i] = by * x[i] + group;\n}\n"
    )
    after = patch.patch_files(spec, own, own, winner, "own_groups.py", "cpu")
    applied(tmp_path, {"own_groups.py": own}, after)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("ASTROLABE_CACHE", str(tmp_path / "cache"))
    import torch

    x, out = torch.randn(2, 8), torch.empty(2, 8)
    importlib.import_module("own_groups").twice(x, out, 2.0, 2, 8, 4)
    assert torch.allclose(out, 2 * x + 4)
    with pytest.raises(patch.ExportError, match="the size group is told by no tensor's shape and is no parameter"):
        patch.patch_files(spec, own.replace("group", "more"), own.replace("group", "more"), winner, "own.py", "cpu")
