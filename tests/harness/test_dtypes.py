"""Every dtype that a spec knows is drawn, called, checked and timed on a CPU, as an input and as an output."""

from __future__ import annotations

from pathlib import Path

import pytest

from compiler.compile import source
from compiler.frontend import NoProgram
from harness.backends import HOST_TYPES
from harness.evaluate import Evaluator
from harness.export import patch
from harness.records import Outcome
from harness.store import Store
from kernels import catalog
from kernels.spec import DTYPE_BYTES
from nodes.policies.render import c_type

pytestmark = pytest.mark.usefixtures("few_samples")

SPEC = """
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="passed_on",
    summary="out = x",
    axes=("n",),
    dtypes=("{dtype}",),
    arguments=(
        Tensor(name="x", role="input", shape=("n",), values=("{values}",)), Tensor(name="out", role="output", shape=("n",)), Size(name="n"),
    ),
    workloads=(Workload(axes={{"n": 4096}}, dtype="{dtype}"), Workload(axes={{"n": 33}}, dtype="{dtype}", timed=False)),
)
"""
TEXT = """
#include <cstdint>
extern "C" void passed_on(const {kind}* x, {kind}* out, int64_t n) {{ for (int64_t i = 0; i < n; ++i) out[i] = x[{at}]; }}
"""


@pytest.mark.parametrize("dtype", ["float8_e5m2", "uint32", "uint16"])
def test_a_kernel_of_the_dtype_is_judged(dtype: str, tmp_path: Path) -> None:
    folder = tmp_path / "passed_on"
    folder.mkdir()
    values = "ordinary" if "float" in dtype else "bits"
    (folder / "spec.py").write_text(SPEC.format(dtype=dtype, values=values))
    (folder / "reference.py").write_text("def reference(x):\n    return {'out': x.clone()}\n")
    kernel = catalog.load(str(folder))
    right, wrong = (TEXT.format(kind=HOST_TYPES[dtype], at=at) for at in ("i", "i / 2"))
    with Evaluator(kernel, "cpu", Store(tmp_path / "store")) as evaluator:
        verdict = evaluator.verify(evaluator.build(evaluator.store.put(right)))
        assert verdict.passed, verdict.reason
        verdict = evaluator.measure(verdict, baseline=evaluator.store.put(right))
        assert verdict.passed and verdict.timings, verdict.reason
        assert evaluator.verify(evaluator.build(evaluator.store.put(wrong))).outcome is Outcome.INCORRECT
    with pytest.raises(NoProgram, match=f"x is of {dtype}"):
        source(kernel.spec, (folder / "reference.py").read_text())


def test_every_dtype_has_its_names() -> None:
    for dtype in DTYPE_BYTES:
        assert c_type(dtype, "cuda") and c_type(dtype, "cpu")
        assert all(dtype in form.names for form in patch.FORMS.values())
