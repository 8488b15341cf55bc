"""One step a thread: no loop, where the host knows that the grid covers the rows."""

from __future__ import annotations

from pathlib import Path

import pytest

from kernels import catalog as kernels
from nodes.rewrites import Facts
from tests.nodes.rewrites.steps import H200, after, check, slow, stays, where_they_apply

COLUMNS = """\
#include <cstdint>
#include <cuda_runtime.h>

template <typename T>
__global__ void blend(const T* x, const int* order, T* y, int64_t n, int stride) {
  const int64_t row = blockIdx.x;
  const int64_t packs = n / 4;
  const T* from = x + row * n;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    const T value = i == 0 ? from[0] : from[order[i]];
    y[row * stride + i * stride] = value + *(from + i);
  }
}

extern "C" void run(const float* x, const int* order, float* y, int64_t rows, int64_t n, int stride, cudaStream_t stream) {
  blend<<<rows, 256, 0, stream>>>(x, order, y, n, stride);
}
"""
ROWS = """\
#include <cstdint>
#include <cuda_runtime.h>

__global__ void shift(const float* x, float* y, int64_t rows, int64_t n) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    // One number for the whole row.
    const float first = x[row * n];
    for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
      y[row * n + i] = x[row * n + i] - first;
  }
}

extern "C" void run(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  shift<<<1024, 256, 0, stream>>>(x, y, rows, n);
}
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const float first = x[row * n];", "if (x[row * n] == 0.0f) continue;\n    const float first = x[row * n];"),
        ("      y[row * n + i] = x[row * n + i] - first;\n  }\n", "      y[row * n + i] = x[row * n + i] - first;\n  }\n  return;\n"),
    ],
)  # fmt: skip
def test_a_loop_over_rows_may_stay(old: str, new: str) -> None:
    assert old in ROWS
    done = after(ROWS.replace(old, new), "grid_stride", "drop_grid_stride_loop")
    assert "row += (gridDim.z * gridDim.y) * blockDim.y" in done and done.count("if constexpr (kOneStep) break;") == 1


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("const int64_t packs = n / 4;", "const int64_t packs = n - 4;"),  # below zero for short rows
        ("row_shape(rows, (n / 4))", "row_shape(rows, (n / 8))"),  # a grid for other steps
        ("shape.block, 0, stream", "dim3(64), 0, stream"),
        ("dim3(cuts, ", "dim3(cuts / 2, "),
        ('extern "C" void run', "template __global__ void blend(const float*, const int*, float*, int64_t, int, unsigned);\n"
         'extern "C" void run'),
        ("i += gridDim.x * blockDim.x", "i += gridDim.x * blockDim.x / 2"),
    ],
)  # fmt: skip
def test_what_the_grid_may_not_cover_stays(old: str, new: str) -> None:
    assert stays("drop_grid_stride_loop", after(COLUMNS, "grid_stride"), old, new)


def bundle(baseline: str) -> str:
    loaded = kernels.load("silu_and_mul")
    text, facts = loaded.baseline("cuda", baseline)[1].read_text(), Facts(spec=loaded.spec, device=H200)
    steps = ("trim_vector_tail", "restrict_pointers", "fast_math", "vectorize", "grid_stride", "drop_grid_stride_loop")
    text = where_they_apply(text, *steps, facts=facts)
    assert "kOneStep" in text
    return text


SILU = kernels.load("silu_and_mul").folder
LIMIT, COVERED = "cuts = slices < 65535 ? slices : 65535", "cuts * along >= steps"
SIZES = (
    "float16:tokens=3,hidden=1021",
    "float16:tokens=2,hidden=8200",
    "float32:tokens=5,hidden=12",
    "bfloat16:tokens=1,hidden=4096",
)


@pytest.mark.parametrize("baseline", ["production", slow("extracted")])
def test_rows_longer_than_the_grid_are_computed_too(baseline: str, tmp_path: Path) -> None:
    """With a grid of at most two slices: packs fit it, single elements of long rows do not."""
    text = bundle(baseline)
    assert text.count(LIMIT) == 1 and text.count(COVERED) == 1
    short = text.replace(LIMIT, "cuts = slices < 2 ? slices : 2")
    check(short, tmp_path, SILU, "0", "1", *SIZES)
    with pytest.raises(AssertionError, match="values wrong"):
        check(short.replace(COVERED, "true"), tmp_path, SILU, "0", "1", *SIZES)


@pytest.mark.parametrize("baseline", ["production", slow("extracted")])
def test_more_rows_than_the_grid_is_high_are_computed_too(baseline: str, tmp_path: Path) -> None:
    """With a grid of a few blocks in y, where the rest is behind them in z."""
    text = bundle(baseline)
    assert text.count("high / 65536 + 1") == 1
    lower = text.replace("high / 65536 + 1", "high / 4 + 1")
    check(lower, tmp_path, SILU, "0", "1", "float16:tokens=37,hidden=264")
