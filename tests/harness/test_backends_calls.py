"""Calls that a spec writes out (build.binding) of functions that take what no spec has: dtypes, strings, lists of numbers, tensors left away."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.backends import stable_abi, torch_extension, tvm_ffi
from harness.evaluate import Evaluator
from harness.store import Store
from kernels.catalog import Kernel
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

REFERENCE = "def reference(x, a, b, scale):\n    return {'out': x * scale + a + b}\n"
TORCH = """#include <torch/extension.h>
#include <string>
namespace engine {
enum class Mode { off, on };
at::Tensor sum(const at::Tensor& x, at::TensorList more, std::vector<std::vector<at::Tensor>> lists, at::IntArrayRef shape,
               const std::vector<int64_t>& same, const std::optional<at::Tensor>& bias, std::optional<at::ScalarType> given, at::ScalarType made,
               const std::string& name, const char* dtype, Mode mode, bool scaled, double scale, int columns, std::optional<double> eps) {
  TORCH_CHECK(shape.size() == 2 && shape[1] == columns && same == shape.vec() && lists.size() == 2 && lists[1].size() == 2);
  TORCH_CHECK(!bias.has_value() && !given.has_value() && !eps && scaled && mode == Mode::on && name == "sum" && std::string(dtype) == "auto");
  at::Tensor out = at::empty(shape, x.options().dtype(made));
  const float *px = x.data_ptr<float>(), *pa = more[0].data_ptr<float>(), *pb = lists[1][1].data_ptr<float>();
  float* po = out.data_ptr<float>();
  for (int64_t i = 0; i < x.numel(); ++i) po[i] = float(px[i] * scale) + pa[i] + pb[i];
  return out;
}
}
"""
CALL = (
    'engine::sum(x, {a}, {{x}, {a, b}}, {rows, columns}, {rows, columns}, std::nullopt, std::nullopt, at::kFloat, "sum", "auto", '
    "engine::Mode::on, true, scale, columns, std::nullopt)"
)
WRITES = """#include <torch/extension.h>
template <typename T> void sum(at::Tensor& out, const std::vector<at::Tensor>& given, at::ScalarType dtype, double scale) {
  TORCH_CHECK(given.size() == 3 && dtype == out.scalar_type());
  const T *px = given[0].data_ptr<T>(), *pa = given[1].data_ptr<T>(), *pb = given[2].data_ptr<T>();
  for (int64_t i = 0; i < out.numel(); ++i) out.data_ptr<T>()[i] = T(px[i] * scale) + pa[i] + pb[i];
}
PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) { m.def("other", [] { return 1; }); }
"""
STABLE = """#include <torch/csrc/stable/tensor.h>
#include <torch/csrc/stable/library.h>
#include <optional>
#include <string>
#include <vector>
#include <torch/csrc/stable/ops.h>
using torch::stable::Tensor;
std::tuple<Tensor, Tensor, Tensor> sum(const Tensor& x, const std::vector<Tensor>& more, std::optional<Tensor> bias, torch::headeronly::ScalarType dtype,
                                       const std::string& mode, bool scaled, double scale) {
  Tensor out = torch::stable::empty_like(x);
  if (bias.has_value() || mode != "auto" || !scaled || dtype != torch::headeronly::ScalarType::Float) return {x, out, x};
  const float *px = (const float*)x.data_ptr(), *pa = (const float*)more[0].data_ptr(), *pb = (const float*)more[1].data_ptr();
  for (int64_t i = 0; i < x.numel(); ++i) ((float*)out.data_ptr())[i] = float(px[i] * scale) + pa[i] + pb[i];
  return {out, x, x};
}
"""
FFI = """#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/optional.h>
#include <string>
using tvm::ffi::TensorView;
void sum(TensorView x, TensorView a, TensorView b, TensorView out, tvm::ffi::Optional<TensorView> bias, DLDataType dtype, std::string mode, double scale) {
  if (bias.has_value() || dtype.bits != 32 || mode != "auto") return;
  const float *px = (const float*)x.data_ptr(), *pa = (const float*)a.data_ptr(), *pb = (const float*)b.data_ptr();
  for (int64_t i = 0; i < x.numel(); ++i) ((float*)out.data_ptr())[i] = float(px[i] * scale) + pa[i] + pb[i];
}
"""


def kernel_of(folder: Path, binding: Any, **listed: str) -> Kernel:
    (folder / "reference.py").write_text(REFERENCE)
    shape = ("rows", "columns")
    given = [Tensor(name=name, role="input", shape=shape, in_list=listed.get(name, "")) for name in "xab"]
    arguments = (*given, Tensor(name="out", role="output", shape=shape), Size(name="rows"), Size(name="columns"))
    arguments += (Scalar(name="scale", value=0.5),)
    workloads = (Workload(axes={"rows": 3, "columns": 50}, dtype="float32"),)
    spec = Spec(
        name="sum_of", summary="a sum", axes=("rows", "columns"), dtypes=("float32", "float64"), arguments=arguments,
        workloads=workloads, build={"binding": binding},
    )  # fmt: skip
    return Kernel(spec, folder)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("module", "text", "binding", "listed"),
    [
        (torch_extension, TORCH, CALL, {}),
        (
            torch_extension, WRITES,
            {"float32": "sum<float>(out, all, at::kFloat, scale)", "float64": "sum<double>(out, all, at::kDouble, scale)"},
            dict.fromkeys("xab", "all"),
        ),
        (stable_abi, STABLE, 'sum(x, {a, b}, std::nullopt, torch::headeronly::ScalarType::Float, "auto", true, scale)', {}),
        (tvm_ffi, FFI, 'sum(x, a, b, out, std::nullopt, DLDataType{kDLFloat, 32, 1}, "auto", scale)', {}),
    ],
    ids=["returned", "templates and a list", "stable, which returns more than the outputs", "tvm_ffi"],
)  # fmt: skip
def test_a_call_gives_what_no_spec_has(
    tmp_path: Path, module: Any, text: str, binding: Any, listed: dict[str, str]
) -> None:
    if reason := module.why_unavailable():
        pytest.skip(reason)
    with Evaluator(kernel_of(tmp_path, binding, **listed), "cpu", Store(tmp_path / "store")) as evaluator:
        build = evaluator.build(evaluator.store.put(text))
        assert build.ok and build.backend == module.__name__.rpartition(".")[2], build.log
        verdict = evaluator.verify(build)
    assert verdict.passed, verdict.reason


def test_a_call_takes_what_it_names_and_no_more(tmp_path: Path) -> None:
    from harness import backends

    spec = kernel_of(tmp_path, "f(x, {columns})").spec
    asked = backends.entry_of(torch_extension, spec, "cpu")
    text = torch_extension.with_binding("", **asked)
    assert "sum_of_call(at::Tensor x, int64_t columns) {\n  return f(x, {columns});" in text
    assert 'pybind11::arg("x"), pybind11::arg("columns")' in text


def test_functions_by_dtype_are_refused_in_a_sentence() -> None:
    with pytest.raises(ValueError, match="takes the whole call of an operator"):
        torch_extension.with_binding("", "f", '{"float32": "f<float>"}')
