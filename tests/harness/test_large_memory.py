"""Where large tensors lie in memory: what no small size shows."""

from pathlib import Path

import pytest

from harness.evaluate import Evaluator
from harness.records import Outcome
from harness.store import Store
from kernels import catalog

SPEC = """
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="twice",
    summary="out = 2 * x",
    axes=("n",),
    dtypes=("float32",),
    arguments=(
        Tensor(name="x", role="input", shape=("n",)),
        Tensor(name="out", role="output", shape=("n",)),
        Size(name="n"),
    ),
    workloads=(Workload(axes={"n": 300_000}, dtype="float32"), Workload(axes={"n": 33}, dtype="float32")),
)
"""
BASELINE = """
#include <cstdint>

extern "C" void twice_float32(const float* x, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = 2 * x[i];
}
"""


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("", ""),
        ("if (n > 200000 && (reinterpret_cast<uintptr_t>(out) & 31)) return;", "tensors that begin anywhere"),
        ("if (n > 200000) { volatile float c = x[n + 16]; (void)c; }", "beyond a tensor"),
    ],
    ids=["right", "whole lines alone", "reads behind"],
)
def test_large_tensors_are_tried_elsewhere_too(wrong: str, says: str, tmp_path: Path):
    """These PASSED: tensors of more than 1 MiB began at an alignment, and ended before memory of ours."""
    folder = tmp_path / "twice"
    folder.mkdir()
    reference = "def reference(x):\n    return {'out': 2 * x}\n"
    for name, text in {"spec.py": SPEC, "reference.py": reference, "baseline.cpp": BASELINE}.items():
        (folder / name).write_text(text)
    store = Store(tmp_path / "store")
    with Evaluator(catalog.load(str(folder)), "cpu", store) as evaluator:
        text = BASELINE.replace("    for (", f"    {wrong}\n    for (")
        found = evaluator.verify(evaluator.build(store.put(text)))
    assert found.outcome is (Outcome.INCORRECT if wrong else Outcome.PASSED), found.reason
    assert says in found.reason
