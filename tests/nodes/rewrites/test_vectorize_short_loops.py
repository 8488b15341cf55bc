"""Neighbouring elements of one thread that move as one: before and after, what stays apart, and what comes out."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, same, stays

FOURS = """\
#include <cuda_fp16.h>
#include <stdint.h>

__global__ void halve(const __half* x, const __half* bias, __half* y, int n) {
  constexpr int kEach = 8 / sizeof(__half);
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
  if (first + kEach > n) return;
  float kept[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) kept[j] = (float)x[first + j] / 2;
  for (int j = 0; j < 4; ++j) {
    const float v = kept[j] + (float)__ldg(bias + j);
    y[first + j] = v;
  }
}

extern "C" void fuzz_float16(const __half* x, const __half* w, __half* y, int64_t rows, int64_t n, cudaStream_t stream) {
  halve<<<(rows * n + 1023) / 1024, 256, 0, stream>>>(x, w, y, rows * n);
}
"""


def test_elements_anywhere_come_out_right() -> None:
    new = after(FOURS, "vectorize_short_loops")
    assert "  Lanes<__half, 4> y_joined;" in new and "bias_joined = load_joined<4>(bias);" in new
    same({"stored": (FOURS, "vectorize_short_loops")}, "even")


ONE = FOURS.replace("kept[j] = (float)x[first + j] / 2;", "kept[j] = 0;").replace("(float)__ldg(bias + j)", "1")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("__half* y, int n", "volatile __half* y, int n"),
        ("j < 4", "j < 3"),
        ("j < 4", "j < 64"),
        ("j < 4", "j < n"),
        ("y[first + j] = v;", "y[first + 2 * j] = v;"),
        ("y[first + j] = v;", "if (v > 0) y[first + j] = v;"),
        ("y[first + j] = v;", "if (v > 99) break;\n    y[first + j] = v;"),
        ("y[first + j] = v;", "y[first + j] = v;\n    y[first + j + 1] = v;"),
        ("y[first + j] = v;", "y[first + j] = v + (float)y[j];"),
        ("y[first + j] = v;", "y[first + j] = v;\n    __syncthreads();"),
        ("y[first + j] = v;", "y[first + j] = v;\n    y += 1;"),
        ("y[first + j] = v;", "const int at = first + j;\n    y[at] = v;"),
        ("y[first + j] = v;", "for (int k = 0; k < 2; ++k) y[first + j] = v;"),
    ],
)
def test_elements_that_stay_apart(old: str, new: str) -> None:
    assert stays("vectorize_short_loops", ONE, old, new)
