"""Loads of several steps before the work on the first one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.tunables import tunables
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


def test_loads_come_first_and_steps_keep_their_order() -> None:
    new = after(STEPS, "load_pipelining")
    assert [(t.name, t.value) for t in tunables(new)] == [("IN_FLIGHT", 2)]
    assert (
        """\
  for (int ahead = blockIdx.x * blockDim.x + threadIdx.x; ahead < n; ahead += IN_FLIGHT * (gridDim.x * blockDim.x)) {
    int at_ahead[IN_FLIGHT];
    float value_ahead[IN_FLIGHT];
#pragma unroll
    for (int step = 0; step < IN_FLIGHT; ++step) {
      const int i = ahead + step * (gridDim.x * blockDim.x);
      if (i < n) {
        at_ahead[step] = from[i];
        const int& at = at_ahead[step];
        value_ahead[step] = x[at];
      }
    }
#pragma unroll
    for (int step = 0; step < IN_FLIGHT; ++step) {
      const int i = ahead + step * (gridDim.x * blockDim.x);
      if (i < n) {
        const int& at = at_ahead[step];
        const float& value = value_ahead[step];
        // The running sum.
        sum += value;
        y[i] = sum;
      }
    }
  }
"""
        in new
    )


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


def test_loads_of_a_single_assignment_get_names() -> None:
    new = " ".join(after(ONE_LINE, "load_pipelining").split())
    assert "loaded_ahead[step] = x[from[i]]; loaded_2_ahead[step] = y[i];" in new
    assert "const float& loaded = loaded_ahead[step]; const float& loaded_2 = loaded_2_ahead[step];" in new
    assert "y[i] = 2.0f * loaded + loaded_2;" in new


@pytest.mark.parametrize("value", ["i > 9 ? x[i] : 0.0f", "from[i] && x[from[i]]", "(sum += x[i])", "2.0f"])
def test_a_load_that_may_not_be_made_gets_none(value: str) -> None:
    assert refused(ONE_LINE.replace("2.0f * x[from[i]] + y[i]", value), "load_pipelining")


def test_only_large_grids_are_cut_down() -> None:
    text = after(kernel_text("extracted"), "restrict_pointers", "vectorize", "grid_stride", "load_pipelining")
    assert "ceil_div(steps, along * (blocks() < DEEP_BLOCKS ? 1 : IN_FLIGHT))" in text
    assert {t.name: t.value for t in tunables(text)}["DEEP_BLOCKS"] == 32 * H200.units


def test_spread_finds_the_division_that_another_step_brought() -> None:
    """A kernel whose row was kept and one whose rows are spread: what is used stands below what it uses."""
    path = ROOT / "tests/inputs/residual_then_norm/baseline.plain.cu"
    text = path.read_text()
    for step in ("restrict_pointers", "warp_shuffle_reduction", "vectorize", "cache_row_in_registers", "grid_stride"):
        text = applied_step(step, text, FACTS) or text
    assert "row_items(" in text and "row_shape(" in text
    assert text.count("inline int64_t ceil_div(") == 1
    assert text.index("inline int64_t ceil_div(") < text.index("inline RowShape row_shape(")


def test_a_thread_with_one_step_alone_keeps_to_it() -> None:
    text = after(
        kernel_text("extracted"),
        "restrict_pointers",
        "vectorize",
        "grid_stride",
        "drop_grid_stride_loop",
        "load_pipelining",
    )
    kernel = " ".join(text[text.index("__global__") :].split())
    assert "constexpr int kInFlight = kOneStep ? 1 : IN_FLIGHT;" in kernel
    assert "[kInFlight];" in kernel and "< kInFlight; ++step" in kernel
    assert kernel.count("if constexpr (kOneStep) break;") == kernel.count("constexpr int kInFlight")
    assert "along * (blocks() < DEEP_BLOCKS ? 1 : IN_FLIGHT)" in text and "cuts * along >= steps" in text


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


def kernel_text(baseline: str) -> str:
    return kernels.load("silu_and_mul").baseline("cuda", baseline)[1].read_text()
