"""An optional tensor that a call leaves away: a null pointer in C, None for what takes tensors, and nothing for the reference."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.export import patch
from harness.store import Store
from kernels import catalog
from kernels.spec import Scalar

pytestmark = pytest.mark.usefixtures("few_samples")

SPEC = """
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="plus",
    summary="out = x + residual, where there is one",
    axes=("n",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("n",)), Scalar(name="residual", ctype="void*", value=0),
        Tensor(name="out", role="output", shape=("n",)), Size(name="n"),
    ),
    workloads=(Workload(axes={"n": 1000}, dtype="float32"),),
)
"""
PLAIN = """
#include <cstdint>
extern "C" void plus(const float* x, void* residual, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = x[i] + (residual ? static_cast<float*>(residual)[i] : 0.0f);
}
"""
PYTHON = """
def plus(x, residual, out, n):
    assert residual is None
    out.copy_(x)
"""
TORCH = """#include <torch/extension.h>
void plus(torch::Tensor x, std::optional<torch::Tensor> residual, torch::Tensor out) {
  out.copy_(residual ? x + *residual : x);
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "plus"
    made.mkdir()
    (made / "spec.py").write_text(SPEC)
    (made / "reference.py").write_text("def reference(x):\n    return {'out': x.clone()}\n")
    return made


@pytest.mark.parametrize("text", [PLAIN, PYTHON], ids=["C", "Python"])
def test_a_call_leaves_it_away(folder: Path, tmp_path: Path, text: str) -> None:
    with Evaluator(catalog.load(str(folder)), "cpu", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(text)))
        assert verdict.passed, verdict.reason
        verdict = evaluator.measure(verdict, baseline=evaluator.store.put(PLAIN))
        assert verdict.passed and verdict.timings, verdict.reason


def test_the_winner_is_taken_only_without_it(folder: Path) -> None:
    spec = catalog.load(str(folder)).spec
    after = patch.patch_files(spec, TORCH, TORCH, PLAIN, "plus.cpp", "cpu")["plus.cpp"]
    assert (
        "astrolabe_plus_fits = !residual.has_value() && x.is_contiguous()" in after
        and "x.data_ptr()), nullptr, " in after
    )
    own = "void plus_of(float* o, const float* x, const float* residual, int n) {}\n"
    bound = spec.model_copy(
        update={"build": spec.build.model_validate({"binding": "plus_of(out, x, (const float*)residual, n)"})}
    )
    header = patch.patch_files(bound, own, own, PLAIN, "own.cpp", "cpu")["own.astrolabe.h"]
    assert "if (a2 == nullptr && " in header and "plus((const float*)a1, nullptr, (float*)a0, n);" in header


def test_a_null_pointer_has_no_value() -> None:
    with pytest.raises(ValueError, match="is no null pointer"):
        Scalar(name="residual", ctype="void*", value=1)
