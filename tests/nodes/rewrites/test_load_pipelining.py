"""Loads of several steps before the work on the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import catalog as kernels
from nodes.policies.rules import applied_step
from nodes.rewrites import Facts
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.test_cuda_rewrites import FACTS, H200, ROOT, after, refused

STEPS = """\
#include <cuda_runtime.h>

__global__ void scale(const float* __restrict__ x, const int* __restrict__ from, float* __restrict__ y, int n) {
  float sum = 0.0f;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) {
    const int at = from[i];
    const float value = x[at];
    // The running sum.
    sum += value;
    y[i] = sum;
  }
}

extern "C" void run(const float* x, const int* from, float* y, long n, cudaStream_t stream) {
  scale<<<256, 256, 0, stream>>>(x, from, y, n);
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("y[i] = sum;", "y[i] = sum; if (sum > 1e9f) break;"),
        ("sum += value;", "sum += __shfl_down_sync(~0u, value, 1);"),
        ("x[at];", "x[at] * sum;"),  # what the step before did
        ("x[at];", "y[at];"),  # an element that another step writes
        ("const float value = x[at];", "float a = x[at], value = a;"),
        ("<<<256, 256", "<<<(n + 255) / 256, 256"),  # one step a thread
    ],
)
def test_what_cannot_be_loaded_early_stays(old: str, new: str) -> None:
    assert old in STEPS
    assert refused(STEPS.replace(old, new), "load_pipelining")


def test_in_place_elements_are_each_steps_own() -> None:
    own = STEPS.replace("x[at];", "y[i];")
    assert "value_ahead[step] = y[i];" in after(own, "load_pipelining")
    assert refused(own.replace("= y[i];", "= y[i + 1];"), "load_pipelining")


ONE_LINE = STEPS.replace(
    STEPS[STEPS.index(" {\n    const int at") : STEPS.index("  }\n}") + 3], " y[i] = 2.0f * x[from[i]] + y[i];"
)


def test_what_a_step_makes_of_its_own_load_is_its_own() -> None:
    """`float4 v = x[i]; v.x *= s;` is how vectors are worked on; the vector was once taken for what the step before left."""
    changed = STEPS.replace("const float value", "float value").replace("sum += value;", "value *= 2; sum += value;")
    assert "float& value = value_ahead[step];" in after(changed, "load_pipelining")
    moved = STEPS.replace("const int at", "int at").replace("sum += value;", "at += 1; sum += value;")
    assert refused(moved, "load_pipelining")  # where another load is depends on it


@pytest.mark.parametrize("value", ["i > 9 ? x[i] : 0.0f", "from[i] && x[from[i]]", "(sum += x[i])", "2.0f"])
def test_a_load_that_may_not_be_made_gets_none(value: str) -> None:
    assert refused(ONE_LINE.replace("2.0f * x[from[i]] + y[i]", value), "load_pipelining")


def test_spread_finds_the_division_that_another_step_brought() -> None:
    """A kernel whose row was kept and one whose rows are spread: what is used stands below what it uses."""
    path = ROOT / "tests/inputs/residual_then_norm/baseline.plain.cu"
    text = path.read_text()
    for step in ("restrict_pointers", "warp_shuffle_reduction", "vectorize", "cache_row_in_registers", "grid_stride"):
        text = applied_step(step, text, FACTS) or text
    assert "row_items(" in text and "row_shape(" in text
    assert text.count("inline int64_t ceil_div(") == 1
    assert text.index("inline int64_t ceil_div(") < text.index("inline RowShape row_shape(")


@pytest.mark.parametrize(
    "more", [pytest.param((), marks=pytest.mark.slow), ("drop_grid_stride_loop",)], ids=["", "drop_grid_stride_loop"]
)
@pytest.mark.parametrize(
    ("name", "baseline"),
    [
        ("tests/inputs/gather_rows", "vector"),
        pytest.param("silu_and_mul", "extracted", marks=pytest.mark.slow),
        pytest.param("silu_and_mul", "production", marks=pytest.mark.slow),
    ],
)
def test_deep_grids_compute_the_same(name: str, baseline: str, more: tuple[str, ...], tmp_path: Path) -> None:
    kernel = kernels.load(name)
    text, facts = kernel.baseline("cuda", baseline)[1].read_text(), Facts(spec=kernel.spec, device=H200)
    for step in ("trim_vector_tail", "restrict_pointers", "vectorize", "grid_stride", *more, "load_pipelining"):
        text = applied_step(step, text, facts) or text
    assert ("kInFlight" in text) == bool(more)
    assert f"DEEP_BLOCKS {32 * H200.units}" in text
    (tmp_path / "candidate.cu").write_text(text.replace(f"DEEP_BLOCKS {32 * H200.units}", "DEEP_BLOCKS 0"))
    ended = emulated(kernel.folder, tmp_path / "candidate.cu", "0")
    assert ended.returncode == 0, ended.stdout + ended.stderr
