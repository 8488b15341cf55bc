"""Threads that take a few elements one after another take one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.test_cuda_rewrites import ROOT, after, flat, refused

TEXT = """\
#include <cuda_bf16.h>
#include <stdint.h>
constexpr int ITEMS = 4;
__device__ float relu_squared(float v) {{ return v > 0.0f ? v * v : 0.0f; }}

template <typename T, int THREADS>
__global__ void items(const T* __restrict__ x, T* __restrict__ y, int64_t n) {{
  {front}
#pragma unroll
  for (int k = 0; k < ITEMS; ++k) {{
    {body}
  }}
}}

extern "C" void relu_squared_float32(const float* x, float* y, int64_t n, cudaStream_t stream) {{
  const int64_t blocks = (n + 64 * ITEMS - 1) / (64 * ITEMS);
  items<float, 64><<<blocks, 64, 0, stream>>>(x, y, n);
}}
extern "C" void relu_squared_bfloat16(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t n, cudaStream_t stream) {{
  const int64_t blocks = (n + 64 * ITEMS - 1) / (64 * ITEMS);
  items<__nv_bfloat16, 64><<<blocks, 64, 0, stream>>>(x, y, n);
}}
"""
STRIPED = "const int64_t base = (int64_t)blockIdx.x * (THREADS * ITEMS) + threadIdx.x;"
IN_STRIDES = "const int64_t i = base + k * THREADS;\n    if (i < n) y[i] = (T)relu_squared((float)x[i]);"
NEIGHBOURS = "const int64_t first = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * ITEMS;"
ONE_BY_ONE = (
    "if (first + k >= n) break;\n    const float v = (float)x[first + k];\n    y[k + first] = (T)relu_squared(v);"
)


def kernel(front: str = STRIPED, body: str = IN_STRIDES) -> str:
    return TEXT.format(front=front, body=body)


def test_neighbours() -> None:
    new = flat(after(kernel(NEIGHBOURS, ONE_BY_ONE), "undo_thread_coarsening"))
    assert "const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x; if (i >= n) return;" in new
    assert "const float v = (float)x[i]; y[i] = (T)relu_squared(v);" in new and "first" not in new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("k * THREADS", "k * 32"),  # elements that other threads have, too
        ("+ threadIdx.x;", "+ 2 * threadIdx.x;"),
        ("(THREADS * ITEMS)", "(THREADS * 8)"),
        ("if (i < n) y[i]", "if (i < n + k) y[i]"),
        ("if (i < n) y[i]", "if (i < n && k > 1) y[i]"),
        ("(float)x[i]", "(float)x[i] * k"),
        ("(float)x[i]", "(float)x[i] * threadIdx.x"),
        ("(float)x[i]", "(float)x[i] + base"),
        ("(float)x[i]", "(float)y[i - 1]"),  # what the thread wrote just before, perhaps
        ("if (i < n) y[i]", "__syncthreads();\n    if (i < n) y[i]"),
        (STRIPED, STRIPED + "\n  float sum = 0;"),
        (STRIPED, STRIPED + "\n  if (threadIdx.x == 0) y[0] = x[0];"),
        ("k < ITEMS", "k < n"),
        ("int k = 0", "int k = 1"),
    ],
)
def test_what_is_shared_out_otherwise_stays(old: str, new: str) -> None:
    text = kernel()
    assert old in text and not refused(text, "undo_thread_coarsening")
    text = text.replace(old, new)
    if "float sum" in new:
        text = text.replace("(T)relu_squared(", "(T)relu_squared(sum = sum * 2 + ")
    assert refused(text, "undo_thread_coarsening")


def test_it_leaves_alone_what_pack_cannot_widen() -> None:
    wide = kernel().replace("items<float, 64>", "items<float4, 64>").replace("<__nv_bfloat16, 64>", "<float4, 64>")
    strided = kernel(body=IN_STRIDES.replace("[i]", "[3 * i]"))
    assert refused(strided, "undo_thread_coarsening")
    assert refused(wide.replace("const T*", "const float4*").replace("T* __", "float4* __"), "undo_thread_coarsening")


@pytest.mark.parametrize(("front", "body"), [(STRIPED, IN_STRIDES), (NEIGHBOURS, ONE_BY_ONE)])
@pytest.mark.parametrize("steps", [("undo_thread_coarsening",), ("undo_thread_coarsening", "vectorize")])
def test_every_element_is_somebodys(tmp_path: Path, front: str, body: str, steps: tuple[str, ...]) -> None:
    candidate = tmp_path / "candidate.cu"
    candidate.write_text(after(kernel(front, body), *steps))
    sizes = [f"{dtype}:elements={n}" for dtype in ("bfloat16", "float32") for n in (1, 64, 257, 1024)]
    ended = emulated(ROOT / "tests/inputs/relu_squared", candidate, "0", *sizes)
    assert ended.returncode == 0, ended.stdout + ended.stderr
