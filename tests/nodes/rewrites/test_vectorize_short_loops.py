"""Neighbouring elements of one thread that move as one: before and after, what stays apart, and what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nodes.rewrites.steps import after, check, problem, stays

FOURS = """\
#include <stdint.h>

__global__ void halve(const short* x, const short* bias, signed char* y, int n) {
  constexpr int kEach = 8 / sizeof(short);
  const int first = (blockIdx.x * blockDim.x + threadIdx.x) * kEach;
  if (first + kEach > n) return;
  int kept[kEach];
#pragma unroll
  for (int j = 0; j < kEach; ++j) kept[j] = x[first + j] / 2;
  for (int j = 0; j < 4; ++j) {
    const int v = kept[j] + __ldg(bias + j);
    y[first + j] = v;
  }
}

extern "C" void run(const short* x, const short* bias, signed char* y, int64_t n, cudaStream_t stream) {
  halve<<<(n + 1023) / 1024, 256, 0, stream>>>(x, bias, y, n);
}
"""


ONE = FOURS.replace(
    "  for (int j = 0; j < kEach; ++j) kept[j] = x[first + j] / 2;", "  for (int j = 0; j < kEach; ++j) kept[j] = 0;"
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("signed char* y, int n", "volatile signed char* y, int n"),
        ("j < 4", "j < 3"),
        ("j < 4", "j < 64"),
        ("j < 4", "j < n"),
        ("y[first + j] = v;", "y[first + 2 * j] = v;"),
        ("y[first + j] = v;", "if (v > 0) y[first + j] = v;"),
        ("y[first + j] = v;", "if (v > 99) break;\n    y[first + j] = v;"),
        ("y[first + j] = v;", "y[first + j] = v;\n    y[first + j + 1] = v;"),
        ("y[first + j] = v;", "y[first + j] = v + y[j];"),
        ("y[first + j] = v;", "y[first + j] = v;\n    __syncthreads();"),
        ("y[first + j] = v;", "y[first + j] = v;\n    y += 1;"),
        ("y[first + j] = v;", "const int at = first + j;\n    y[at] = v;"),
        ("y[first + j] = v;", "for (int k = 0; k < 2; ++k) y[first + j] = v;"),
    ],
)
def test_elements_that_stay_apart(old: str, new: str) -> None:
    assert stays("vectorize_short_loops", ONE.replace("__ldg(bias + j)", "1"), old, new)


def test_elements_anywhere_come_out_right(tmp_path: Path) -> None:
    problem(tmp_path, SPEC, REFERENCE, FOURS)
    check(
        after(FOURS, "vectorize_short_loops"), tmp_path, tmp_path, "0", "1", "int16:n=4", "int16:n=64", "int16:n=1028"
    )


SPEC = """\
from kernels.spec import Size, Spec, Tensor, Workload

SPEC = Spec(
    name="run",
    summary="y = x / 2 + bias, in bytes",
    axes=("n",),
    dtypes=("int16",),
    arguments=(
        Tensor(name="x", role="input", shape=("n",), values=("range:0:100",)),
        Tensor(name="bias", role="input", shape=("4",), values=("range:0:9",)),
        Tensor(name="y", role="output", shape=("n",), dtype="int8"),
        Size(name="n"),
    ),
    flops="2*n",
    workloads=(Workload(axes={"n": 64}, dtype="int16"),),
)
"""
REFERENCE = """\
def reference(x, bias):
    return {"y": x // 2 + bias.repeat(x.numel() // 4)}
"""
