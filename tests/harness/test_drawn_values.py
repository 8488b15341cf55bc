"""Inputs that a function of the kernel's folder draws: a table, rows that sum to one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from harness import device, jobs
from harness.backends import cpu
from harness.checks import drawing
from harness.device import ArgumentBuffers
from harness.evaluate import Evaluator
from harness.store import Store
from harness.timing.sampling import ABComparison, Arm
from kernels import catalog
from kernels.catalog import KernelError
from kernels.spec import Workload

pytestmark = pytest.mark.usefixtures("few_samples")

SPEC = """from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="pick", summary="out = table[codes] * share", axes=("n", "codes_of"), dtypes=("float32",),
    arguments=(
        Tensor(name="table", role="input", shape=("codes_of",), values=("drawn:levels",), constant=True),
        Tensor(name="codes", role="input", shape=("n",), dtype="int32", values=("index:codes_of",)),
        Tensor(name="share", role="input", shape=("n",), values=("drawn:shares",)),
        Tensor(name="out", role="output", shape=("n",)), Size(name="n"),
    ),
    workloads=(Workload(axes={"n": 700, "codes_of": 16}, dtype="float32"), Workload(axes={"n": 9, "codes_of": 4}, dtype="float32", timed=False)),
)
"""
INPUTS = """import torch


def levels(shape, sizes, generator):
    return torch.linspace(-1, 1, sizes["codes_of"])


def shares(shape, sizes, generator):
    return torch.rand(shape, generator=generator).softmax(-1)
"""
BASELINE = """#include <cstdint>
extern "C" void pick(const float* table, const int32_t* codes, const float* share, float* out, int64_t n) {
    for (int64_t i = 0; i < n; ++i) out[i] = table[codes[i]] * share[i];
}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "pick"
    made.mkdir()
    texts = {"spec.py": SPEC, "inputs.py": INPUTS, "baseline.cpp": BASELINE}
    texts["reference.py"] = "def reference(table, codes, share):\n    return {'out': table[codes.long()] * share}\n"
    for name, text in texts.items():
        (made / name).write_text(text)
    return made


def drawn(kernel: catalog.Kernel) -> dict[str, torch.Tensor]:
    return drawing.draw_inputs(kernel.spec, kernel.spec.workloads[0], "ordinary", {}, "cpu")


def test_a_table_and_rows_that_sum_to_one_are_drawn_and_judged(folder: Path, tmp_path: Path) -> None:
    kernel = catalog.load(str(folder))
    first, second = drawn(kernel), drawn(kernel)
    assert torch.equal(first["table"], torch.linspace(-1, 1, 16)) and float(first["share"].sum()) == pytest.approx(1.0)
    assert not torch.equal(first["share"], second["share"])
    if reason := cpu.why_unavailable():
        pytest.skip(reason)
    with Evaluator(kernel, "cpu", Store(tmp_path / "store")) as evaluator:
        build = evaluator.build(evaluator.store.put(BASELINE))
        verdict = evaluator.verify(build)
        assert verdict.passed, verdict.reason
        assert evaluator.measure(verdict, baseline=build.candidate).timings


def test_two_kernels_with_a_function_of_one_name_do_not_mix(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_text(path.read_text().replace("linspace(-1, 1", "linspace(5, 6"))
    here, there = catalog.load(str(folder)), catalog.load(str(other))
    assert (
        float(drawn(here)["table"][0]) == -1
        and float(drawn(there)["table"][0]) == 5
        and float(drawn(here)["table"][0]) == -1
    )


def test_a_far_side_draws_by_the_same_functions(folder: Path, tmp_path: Path) -> None:
    bundle, contents = jobs.bundle_kernel(catalog.load(str(folder)))
    kernel = jobs.EvaluationServer(tmp_path / "far")._kernel(bundle, contents, "cpu")
    catalog.DRAWS.pop(
        next(v for t in catalog.load(str(folder)).spec.inputs for v in t.values if "levels" in v).partition(":")[2]
    )
    assert torch.equal(drawn(kernel)["table"], torch.linspace(-1, 1, 16))


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("def shares", "def shapes", "defines no function shares"),
        ('sizes["codes_of"])', "3)", r"levels\(\) made a tensor of shape \[3\], asked for \[16\]"),
        ('sizes["codes_of"]', 'sizes["code"]', r"levels\(\) fails for the shape \[16\]: KeyError"),
    ],
)
def test_what_is_wrong_with_such_a_function_is_one_sentence(folder: Path, before: str, after: str, said: str) -> None:
    (folder / "inputs.py").write_text(INPUTS.replace(before, after))
    with pytest.raises(KernelError, match=said):
        drawn(catalog.load(str(folder)))


def test_a_flat_part_of_it_is_what_tools_are_given(folder: Path) -> None:
    kernel = catalog.load(str(folder))
    view, name = torch.empty(5), kernel.spec.inputs[0].values[0]
    drawing.draw(view, name, kernel.spec.workloads[0], device.generator("cpu"))
    assert torch.equal(view, torch.linspace(-1, 1, 16)[:5])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tiny_values_are_of_many_sizes_and_most_rows_of_the_smallest(dtype: torch.dtype):
    view = torch.empty(200, 64, dtype=dtype)
    drawing.draw(view, "tiny", Workload(axes={"n": 200}, dtype="float32"), device.generator("cpu"))
    sizes = view.double().abs().amax(dim=1).log2()
    smallest = -20 if dtype == torch.float16 else -66
    assert 0.45 < float((sizes < smallest + 3).double().mean()) < 0.75, (
        "a tolerance is that of the median row, at least"
    )
    assert float(sizes.max()) > smallest / 2, "whose products are no zeros"


def test_what_is_called_before_it_is_timed_has_the_indices_that_the_spec_says(folder: Path) -> None:
    """An engine's kernel, whose first call of tensors is made as calls are planned, ended by SIGSEGV on what memory held by chance."""
    kernel = catalog.load(str(folder))
    one = ABComparison(kernel, kernel.spec.workloads[0], "hot", "cpu", 1 << 20)
    memory, seen = ArgumentBuffers("cpu", one.size), []
    memory.view.fill_(0x7F)
    codes = next(tensor for tensor in kernel.spec.inputs if tensor.name == "codes")

    def request(_message: dict[str, Any]) -> dict[str, Any]:
        seen.append(one.layout.view(memory, codes)[0].clone())
        return {}

    one.open(memory)
    one.plan(Arm("side", SimpleNamespace(request=request)))  # type: ignore[arg-type]
    assert seen[0].min() >= 0 and seen[0].max() < 16
    memory.close()
