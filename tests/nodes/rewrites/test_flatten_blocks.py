"""Blocks of two dimensions that are one row of threads."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import INPUTS, after, refused, same, stays

STEP = "flatten_blocks"
PLANAR = """\
__device__ float total(float v, float* sums) {
  for (int s = 16; s > 0; s /= 2) v += __shfl_xor_sync(0xffffffffu, v, s);
  if (threadIdx.x == 0) sums[threadIdx.y] = v;
  __syncthreads();
  v = 0.0f;
  for (int w = 0; w < blockDim.y; ++w) v += sums[w];
  return v;
}

__global__ void center(const float* x, float* y, int n) {
  __shared__ float sums[8];
  const int tx = threadIdx.x, ty = threadIdx.y;
  float v = 0.0f;
  for (int i = tx + ty * 32; i < n; i += blockDim.y * blockDim.x) v += x[blockIdx.x * n + i];
  v = total(v, sums) / n;
  for (int i = threadIdx.y * blockDim.x + threadIdx.x; i < n; i += 32 * blockDim.y) {
    y[blockIdx.x * n + i] = x[blockIdx.x * n + i] - v;
  }
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  int height = 8;
  dim3 block(32, 8);
  center<<<rows, block, 0, stream>>>(x, y, n);
}
"""


def test_threads_are_counted_along_x() -> None:
    later = PLANAR.replace("block(32, 8);", "block(32, height);\n  height = 2;")
    made = {
        name: (text, after(text, STEP)) for name, text in {"planar": PLANAR, "a height that changes": later}.items()
    }
    same(made)
    assert "block_sum<0>(v)" in after(made["planar"][1], "canonicalize_reductions")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("dim3 block(32, 8);", "dim3 block(256);"),
        ("dim3 block(32, 8);", "dim3 block(32, 4, 2);"),
        ("dim3 block(32, 8);", "dim3 block(n, 8);"),
        ("dim3 block(32, 8);", "dim3 block(32, 8);\n  center<<<rows, dim3(64, 4), 0, stream>>>(x, y, n);"),
        ("dim3 block(32, 8);", "dim3 block(32, 8);\n  block.x = n;"),
        ("  float v = 0.0f;\n  for (int i = tx", "  const dim3 all = blockDim;\n  float v = 0.0f;\n  for (int i = tx"),
        (
            "w < blockDim.y; ++w) v += sums[w];\n  return v;\n}\n",
            "w < WARPS; ++w) v += sums[w];\n  return v;\n}\n#define WARPS blockDim.y\n",
        ),
    ],
)
def test_other_blocks_stay(old: str, new: str) -> None:
    assert stays(STEP, PLANAR, old, new)


def test_rows_by_y_stay() -> None:
    text = (
        PLANAR.replace("ty * 32", "ty * 16")
        .replace("threadIdx.y * blockDim.x + threadIdx.x", "threadIdx.x")
        .replace("32 * blockDim.y", "32")
    )
    assert refused(text, STEP) and refused((INPUTS / "short_softmax/baseline.warp.cu").read_text(), STEP)
