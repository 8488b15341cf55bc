"""Lists of tensors, as a multi-tensor optimiser takes them, and calls in which an axis has size zero."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.export import patch
from harness.records import Outcome
from harness.store import Store
from kernels import catalog

SPEC = """
from kernels.spec import Scalar, Size, Spec, Tensor, Workload

SPEC = Spec(
    name="step",
    summary="p -= lr * g for each parameter",
    axes=("n",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="noop", role="input", shape=("1",), dtype="int32", values=("integers:0:1",)),
        Tensor(name="g0", role="input", shape=("n",), in_list="lists/0"),
        Tensor(name="g1", role="input", shape=("3*n", "2"), in_list="lists/0"),
        Tensor(name="p0", role="inout", shape=("n",), in_list="lists/1"),
        Tensor(name="p1", role="inout", shape=("3*n", "2"), in_list="lists/1"),
        Scalar(name="lr", value=0.5),
        Size(name="n"),
    ),
    workloads=(Workload(axes={"n": 1000}, dtype="float32"),),
    zeros=("n",),
)
"""
PLAIN = """
#include <cstdint>
static void one(const float* g, float* p, float lr, int64_t n) { for (int64_t i = 0; i < n; ++i) p[i] -= lr * g[i]; }
extern "C" void step(const int* noop, const float* g0, const float* g1, float* p0, float* p1, float lr, int64_t n) {
    one(g0, p0, lr, n);
    one(g1, p1, lr, 6 * n);
}
"""
PYTHON = """
import numpy
def step(noop, lists, lr):
    gradients, parameters = lists
    assert len(gradients) == len(parameters) == 2 and gradients[1].shape == (3 * len(gradients[0]), 2)
    for g, p in zip(gradients, parameters):
        p.numpy()[...] -= numpy.float32(lr) * g.numpy()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "step"
    made.mkdir()
    (made / "spec.py").write_text(SPEC)
    (made / "reference.py").write_text(
        "def reference(noop, g0, g1, p0, p1, lr):\n    return {'p0': p0 - lr * g0, 'p1': p1 - lr * g1}\n"
    )
    return made


def verified(folder: Path, tmp_path: Path, text: str):
    with Evaluator(catalog.load(str(folder)), "cpu", Store(tmp_path / "store")) as evaluator:
        return evaluator.verify(evaluator.build(evaluator.store.put(text)))


@pytest.mark.parametrize("text", [PLAIN, PYTHON], ids=["C", "Python"])
def test_lists_of_tensors(folder: Path, tmp_path: Path, text: str) -> None:
    verdict = verified(folder, tmp_path, text)
    assert verdict.passed, verdict.reason
    assert any("n of size zero" in check.name for check in verdict.checks), [check.name for check in verdict.checks]


def test_a_call_without_elements_that_writes_is_wrong(folder: Path, tmp_path: Path) -> None:
    verdict = verified(folder, tmp_path, PLAIN.replace("one(g0, p0, lr, n);", "one(g0, p0, lr, n); if (!n) p0[0] = 0;"))
    assert verdict.outcome is Outcome.INCORRECT and "n of size zero" in verdict.reason, verdict.reason


def test_a_call_without_elements_that_ends_the_process_is_wrong(folder: Path, tmp_path: Path) -> None:
    verdict = verified(
        folder, tmp_path, PLAIN.replace("one(g0, p0, lr, n);", "one(g0, p0, lr, n); if (!n) __builtin_trap();")
    )
    assert verdict.outcome is Outcome.RUNTIME_ERROR and "where nothing is to be done" in verdict.reason, verdict.reason


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            'role="inout", shape=("n",), in_list="lists/1"',
            'role="inout", shape=("n",), in_list="lists/3"',
            "not counted from 0",
        ),
        ('shape=("n",), in_list="lists/0"', 'shape=("n",), in_list="others"', ""),
        ('zeros=("n",)', 'zeros=("m",)', "is no axis"),
    ],
)
def test_what_does_not_fit_is_refused(folder: Path, old: str, new: str, said: str) -> None:
    (folder / "spec.py").write_text(SPEC.replace(old, new))
    if not said:
        assert catalog.load(str(folder))
        return
    with pytest.raises(catalog.KernelError, match=said):
        catalog.load(str(folder))


TORCH = """#include <torch/extension.h>
void step(at::Tensor noop, std::vector<std::vector<at::Tensor>> lists, float lr) {
  for (size_t i = 0; i < lists[0].size(); ++i) lists[1][i].sub_(lists[0][i] * lr);
}
"""


def test_the_winner_is_called_for_lists_as_long(folder: Path) -> None:
    spec = catalog.load(str(folder)).spec
    after = patch.patch_files(spec, TORCH, TORCH, PLAIN, "step.cpp", "cpu")["step.cpp"]
    assert "if (lists.size() == 2 && lists[0].size() == 2 && lists[1].size() == 2 && noop.dim() == 1" in after, after
    assert "static_cast<float*>(lists[1][0].data_ptr())" in after and "const int64_t n_ = lists[0][0].size(0);" in after
