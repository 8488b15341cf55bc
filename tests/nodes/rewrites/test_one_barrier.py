"""The rewrite one_barrier: what it makes of a hand-written block reduction, and what it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.tunables import bake
from nodes.policies.rules import applied_step
from nodes.rewrites import Facts
from tests.nodes.rewrites.test_row_rewrites import FACTS, ROOT, emulated

BEFORE = """\
constexpr int kWarp = 32;

__device__ float block_max(float value, float* slots) {
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x / kWarp;
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  if (warp == 0) {
    value = lane < blockDim.x / kWarp ? slots[lane] : -INFINITY;
    // Pairs of lanes.
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
      value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    if (lane == 0) slots[0] = value;
  }
  __syncthreads();
  return slots[0];
}

__global__ void row_max(const float* x, float* y, int n) {
  __shared__ float slots[32];
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) largest = fmaxf(largest, x[blockIdx.x * n + i]);
  largest = block_max(largest, slots);
  if (threadIdx.x == 0) y[blockIdx.x] = largest;
}
"""
AFTER = """\
  if (lane == 0) slots[warp] = value;
  __syncthreads();
  value = lane < blockDim.x / kWarp ? slots[lane] : -INFINITY;
  // Pairs of lanes.
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
  }
  return value;
}
"""


def applied(text: str, facts: Facts = FACTS) -> str | None:
    return applied_step("one_barrier", text, facts)


def test_every_warp_does_the_last_step_for_itself() -> None:
    new = applied(BEFORE)
    assert new is not None and AFTER in new and new.count("__syncthreads") == 1
    assert applied(new) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "__shfl_xor_sync(0xffffffffu, value, offset));\n    }",
            "__shfl_down_sync(0xffffffffu, value, offset));\n    }",
        ),
        ("? slots[lane] : -INFINITY", "? slots[threadIdx.x] : -INFINITY"),
        ("? slots[lane] : -INFINITY", "? slots[lane] : slots[warp]"),
        ("lane = threadIdx.x & 31", "lane = threadIdx.x & 63"),
        ("lane = threadIdx.x & 31", "lane = threadIdx.x"),
        ("  __syncthreads();\n  return slots[0];", "  return slots[0];"),
        ("return slots[0];", "return slots[1];"),
        ("if (lane == 0) slots[0] = value;", "if (lane == 0) slots[0] = value + 1;"),
        ("if (threadIdx.x == 0) y[blockIdx.x] = largest;", "if (threadIdx.x == 0) y[blockIdx.x] = slots[0];"),
        ("if (lane == 0) slots[0] = value;\n  }", "if (lane == 0) slots[0] = value;\n  } else { value = 0; }"),
    ],
    ids=["down", "thread", "warp", "two warps", "block", "one", "slot", "sum", "slots read again", "else"],
)
def test_what_is_another_thing_stays(old: str, new: str) -> None:
    assert old in BEFORE
    assert applied(BEFORE.replace(old, new)) is None


@pytest.mark.slow
def test_the_norm_computes_what_the_reference_says(tmp_path: Path) -> None:
    folder = ROOT / "kernels/fused_add_rmsnorm"
    text = applied((folder / "baseline.production.cu").read_text())
    assert text is not None
    for step in ("fast_math", "keep_row", "dependent_launch"):
        text = applied_step(step, text, FACTS) or text
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(bake(text, {}))
    workloads = ["float16:tokens=2,hidden=4096", "bfloat16:tokens=1,hidden=20000", "float32:tokens=1,hidden=515"]
    assert emulated(folder, candidate, "0", "1", *workloads) == "right"
