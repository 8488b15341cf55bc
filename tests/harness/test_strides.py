"""Tensors whose rows do not lie one behind the other: a row's stride as an axis, a slice of a fused qkv, windows that overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler import compile as compiling
from harness.evaluate import Evaluator
from harness.export import dropin, patch
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

pytestmark = pytest.mark.usefixtures("few_samples")

SPEC = """
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="double",
    summary="out = 2 * x",
    axes=("rows", "columns", "x_stride", "out_stride"),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("rows", "columns"), strides=("x_stride", "1"), values=("ordinary", "outliers")),
        Tensor(name="out", role="output", shape=("rows", "columns"), strides=("out_stride", "1")),
        Size(name="rows"), Size(name="columns"), Size(name="x_stride"), Size(name="out_stride"),
    ),
    workloads=(
        Workload(axes={"rows": 30, "columns": 100, "x_stride": 300, "out_stride": 104}, dtype="float32"),
        Workload(axes={"rows": 1, "columns": 7, "x_stride": 8, "out_stride": 7}, dtype="float32", timed=False),
    ),
)
"""
TEXT = """
#include <cstdint>
extern "C" void double_float32(
    const float* x, float* out, int64_t rows, int64_t columns, int64_t x_stride, int64_t out_stride) {
    for (int64_t row = 0; row < rows; ++row)
        for (int64_t i = 0; i < columns; ++i) out[row * out_stride + i] = 2 * x[row * x_stride + i];
}
"""
PYTHON = """
import numpy
def double(x, out, rows, columns, x_stride, out_stride):
    assert x.stride() == (x_stride, 1) and out.stride() == (out_stride, 1)
    numpy.multiply(x.numpy(), 2, out=out.numpy())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "double"
    made.mkdir()
    (made / "spec.py").write_text(SPEC)
    (made / "reference.py").write_text("def reference(x):\n    return {'out': 2 * x}\n")
    return made


def verified(folder: Path, tmp_path: Path, text: str):
    with Evaluator(catalog.load(str(folder)), "cpu", Store(tmp_path / "store")) as evaluator:
        return evaluator.verify(evaluator.build(evaluator.store.put(text)))


@pytest.mark.parametrize("text", [TEXT, PYTHON], ids=["C", "Python"])
def test_rows_with_a_stride_are_checked_and_timed(folder: Path, tmp_path: Path, text: str) -> None:
    with Evaluator(catalog.load(str(folder)), "cpu", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
        assert verdict.passed, verdict.reason
        verdict = evaluator.measure(verdict, baseline=evaluator.store.put(TEXT))
        assert verdict.passed and verdict.timings, verdict.reason


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("x[row * columns + i]", ""),
        ("x[row * x_stride + i] + 0 * x[row * x_stride + columns]", ""),
        ("(out[row * out_stride + columns] = 0, x[row * x_stride + i])", "wrote"),
    ],
    ids=["reads rows as if one lay behind the other", "reads between rows", "writes between rows"],
)
def test_what_lies_between_rows_is_poison(folder: Path, tmp_path: Path, wrong: str, said: str) -> None:
    text = TEXT.replace("x[row * x_stride + i]", wrong)
    verdict = verified(folder, tmp_path, text)
    assert verdict.outcome in (Outcome.INCORRECT, Outcome.RUNTIME_ERROR) and said in verdict.reason, verdict.reason


def test_windows_that_overlap_are_drawn_as_one_row(tmp_path: Path) -> None:
    made = tmp_path / "windows"
    made.mkdir()
    text = SPEC.replace(
        'shape=("rows", "columns"), strides=("x_stride", "1")', 'shape=("rows", "columns"), strides=("1", "1")'
    )
    (made / "spec.py").write_text(text)
    (made / "reference.py").write_text("def reference(x):\n    return {'out': 2 * x}\n")
    kernel = catalog.load(str(made))
    x = kernel.spec.tensors[0]
    assert kernel.spec.span(x, kernel.spec.workloads[0].axes) == 129
    assert kernel.spec.tensor_bytes(x, kernel.spec.workloads[0]) == 4 * 129
    with Evaluator(kernel, "cpu", Store(tmp_path / "store")) as evaluator:
        source = evaluator.store.put(TEXT.replace("row * x_stride", "row"))
        verdict = evaluator.verify(evaluator.build(source))
        assert verdict.passed, verdict.reason
        assert evaluator.measure(verdict, baseline=source).passed


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"strides": ("columns",)}, "has 1 strides and 2 extents"),
        ({"strides": ("columns - 1", "1")}, "overlap at"),
        ({"strides": ("0 - columns", "1")}, "negative stride"),
        ({"role": "workspace", "strides": ("columns", "1")}, "a workspace, which has no strides"),
    ],
)
def test_strides_that_do_not_fit_are_refused(fields: dict[str, object], said: str) -> None:
    x = Tensor(name="x", role="input", shape=("columns",))
    out = Tensor.model_validate({"name": "out", "role": "output", "shape": ("rows", "columns"), **fields})
    more = (Tensor(name="y", role="output", shape=("1",)),) if out.role == "workspace" else ()
    with pytest.raises(ValueError, match=said):
        Spec(
            name="one", summary="one", axes=("rows", "columns"), dtypes=("float32",), arguments=(x, out, *more, Size(name="rows")),
            workloads=(Workload(axes={"rows": 3, "columns": 5}, dtype="float32"),),
        )  # fmt: skip


@pytest.mark.parametrize("reference", ["2 * x", "x / x.square().sum(dim=-1, keepdim=True)"], ids=["elements", "rows"])
def test_the_compiler_reads_and_writes_rows_where_they_lie(folder: Path, tmp_path: Path, reference: str) -> None:
    (folder / "reference.py").write_text(f"def reference(x):\n    return {{'out': {reference}}}\n")
    kernel = catalog.load(str(folder))
    text = compiling.source(kernel.spec, (folder / "reference.py").read_text(), device="cpu")
    assert text and "x_stride" in text
    verdict = verified(folder, tmp_path, text)
    assert verdict.passed, verdict.reason


TORCH = """#include <torch/extension.h>
void double_(torch::Tensor x, torch::Tensor out, int64_t mode) {
  out.copy_(x * 2);
}
"""


def test_the_winner_is_called_for_rows_that_lie_so(folder: Path) -> None:
    spec = catalog.load(str(folder)).spec
    spec = spec.model_copy(
        update={
            "arguments": (*spec.arguments, Scalar(name="mode", ctype="int64_t", value=3)),
            "build": spec.build.model_validate({"binding": "double_"}),
        }
    )
    winner = TEXT.replace("int64_t out_stride)", "int64_t out_stride, int64_t mode)")
    after = patch.patch_files(spec, TORCH, TORCH, winner, "double.cpp", "cpu")["double.cpp"]
    assert "const int64_t x_stride_ = x.stride(0);" in after and "out.stride(0) == out_stride_" in after
    assert "x.stride(1) == 1" in after and "is_contiguous" not in after
    assert "static_cast<int64_t>(mode) == static_cast<int64_t>(3)" in after, after


def test_a_package_takes_rows_that_lie_so(folder: Path, tmp_path: Path) -> None:
    files = dropin.export(catalog.load(str(folder)), TEXT, {}, tmp_path / "out", "cpu")
    text = next(path for path in files if path.name == "__init__.py").read_text()
    assert "x_stride = x.stride(0)" in text and "x.stride() != (x_stride, 1)" in text
