"""Kernels with traps: whatever the rewrites make of them must compute what they computed before.

Each takes x and y, float [rows, n], and changes y. Where a rewrite refuses, nothing is compared.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import queue
import tempfile
from pathlib import Path

import pytest
import torch

from harness.records import DeviceFacts
from kernels.spec import Spec, Tensor, Workload
from nodes.policies.rules import applied_step
from nodes.rewrites import Facts, ordered
from tests.nodes.rewrites.emulate import emulation

pytestmark = pytest.mark.slow  # 36 kernels, each rewritten in every way and run thread by thread

FACTS = Facts(
    spec=Spec(
        name="trap",
        summary="a trap",
        axes=("n",),
        dtypes=("float32",),
        arguments=(Tensor(name="out", role="output", shape=("n",)),),
        workloads=(Workload(axes={"n": 1}, dtype="float32"),),
    ),
    device=DeviceFacts(device="cuda", name="H200", architecture="sm_90", units=132, last_level_cache_bytes=50 << 20),
)
HEAD = "#include <cuda_runtime.h>\n#include <stdint.h>\n\n"
ENTRY = """
extern "C" void trap(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {{
  {launch}
}}
"""
ROWS = "trap_kernel<<<rows, 128, 0, stream>>>(x, y, n);"
BY_THREADS = "trap_kernel<<<(rows + 63) / 64, 64, 0, stream>>>(x, y, n, rows);"
TREE = """
  partial[threadIdx.x] = v;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
    __syncthreads();
  }
"""
TRAPS: dict[str, tuple[str, str]] = {
    "in place": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = y[blockIdx.x * n + i] * 2 + x[blockIdx.x * n + i];
}"""),
    "written then read in one body": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    y[blockIdx.x * n + i] = x[blockIdx.x * n + i] + 1;
    const float again = y[blockIdx.x * n + i];
    y[blockIdx.x * n + i] = again * again;
  }
}"""),
    "reversed by another thread": (ROWS, """{
  float* row = y + blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[blockIdx.x * n + i];
  __syncthreads();
  float kept[1];
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    kept[0] = row[n - 1 - i] + row[i];
    if (i == n - 1) row[i] = kept[0];
  }
}"""),
    "neighbour in shared memory": (ROWS, """{
  __shared__ float line[4096];
  for (int i = threadIdx.x; i < n; i += blockDim.x) line[i] = x[blockIdx.x * n + i];
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = line[i] + line[(i + 1) % n];
}"""),
    "own row in shared memory": (ROWS, """{
  __shared__ float line[4096];
  for (int i = threadIdx.x; i < n; i += blockDim.x) line[i] = x[blockIdx.x * n + i] * 3;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = line[i] + x[i];
}"""),
    "both branches write": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (x[blockIdx.x * n + i] > 0) y[blockIdx.x * n + i] = 1;
    else y[blockIdx.x * n + i] = x[blockIdx.x * n + i];
  }
}"""),
    "some elements stay": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (x[blockIdx.x * n + i] > 0) y[blockIdx.x * n + i] = 1;
  }
}"""),
    "sum over rows of a block": ("trap_kernel<<<2, 128, 0, stream>>>(x, y, n, rows);", """{
  float v = 0;
  for (int row = blockIdx.x; row < rows; row += gridDim.x)
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[row * n + i];
  y[blockIdx.x * n + threadIdx.x % n] = v;
}"""),
    "a warp alone": ("trap_kernel<<<rows, 32, 0, stream>>>(x, y, n);", """{
  float v = 0;
  for (int i = threadIdx.x; i < n; i += 32) v += x[blockIdx.x * n + i];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  for (int i = threadIdx.x; i < n; i += 32) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] - v;
}"""),
    "a tree and two passes": (ROWS, """{
  __shared__ float partial[128];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];""" + TREE + """
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] - partial[0] / n;
}"""),
    "the tree's memory twice": (ROWS, """{
  __shared__ float partial[128];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];""" + TREE + """
  const float mean = partial[0] / n;
  __syncthreads();
  v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += (x[blockIdx.x * n + i] - mean) * (x[blockIdx.x * n + i] - mean);""" + TREE + """
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * partial[0] + mean;
}"""),
    "the row changes in between": (ROWS, """{
  __shared__ float partial[128];
  float* row = y + blockIdx.x * n;
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float value = row[i];
    v += value;
    row[i] = value + x[blockIdx.x * n + i];
  }""" + TREE + """
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float value = row[i];
    row[i] = value * partial[0];
  }
}"""),
    "a pointer that moves": (ROWS, """{
  x += blockIdx.x * n + 1 - 1;
  y += blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 5;
}"""),
    "a pointer that moves to an odd place": (ROWS, """{
  x += blockIdx.x * n;
  y += blockIdx.x * n + 1;
  for (int i = threadIdx.x; i < n - 1; i += blockDim.x) y[i] = x[i];
}"""),
    "blocks have places of their own": ("trap_kernel<<<3, 128, 0, stream>>>(x, y, rows * n);", """{
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  y[blockIdx.x * blockDim.x + threadIdx.x] = v;
}"""),
    "broadcast along rows": ("trap_kernel<<<(rows * n + 127) / 128, 128, 0, stream>>>(x, y, n, rows);", """{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const int row = i / n, column = i % n;
  y[i] = x[i] + x[column] * x[row * n];
}"""),
    "a window": ("trap_kernel<<<(rows * n + 127) / 128, 128, 0, stream>>>(x, y, n, rows);", """{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < rows * n - 1) {
    y[i] = x[i + 1] - x[i];
  }
}"""),
    "pairs": (ROWS, """{
  for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
    const float a = x[blockIdx.x * n + 2 * i], b = x[blockIdx.x * n + 2 * i + 1];
    y[blockIdx.x * n + 2 * i] = a - b;
    y[blockIdx.x * n + 2 * i + 1] = a + b;
  }
}"""),
    "every other": (ROWS, """{
  for (int i = threadIdx.x; i < n / 2; i += blockDim.x) y[blockIdx.x * n + 2 * i] = x[blockIdx.x * n + i];
}"""),
    "steps of another width": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += 128) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] / 3.0;
}"""),
    "one thread sums up": (ROWS, """{
  __shared__ float partial[128];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];""" + TREE + """
  __shared__ float scale;
  if (threadIdx.x == 0) scale = partial[0] * 2;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * scale;
}"""),
    "an index that the body moves": (ROWS, """{
  int64_t at = blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    y[at + i] = x[at + i];
    at += 0 * n;
  }
}"""),
    "float4 and a tail": (ROWS, """{
  const float* from = x + blockIdx.x * n;
  float* to = y + blockIdx.x * n;
  const bool whole = n % 4 == 0;
  const int64_t packs = whole ? n / 4 : 0;
  for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
    float4 v = reinterpret_cast<const float4*>(from)[i];
    v.x += 1; v.y += 1; v.z += 1; v.w += 1;
    reinterpret_cast<float4*>(to)[i] = v;
  }
  for (int64_t i = packs * 4 + threadIdx.x; i < n; i += blockDim.x) to[i] = from[i] + 1;
}"""),
    "a local array": (ROWS, """{
  float seen[4] = {0, 0, 0, 0};
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    seen[i % 4] += x[blockIdx.x * n + i];
    y[blockIdx.x * n + i] = seen[i % 4];
  }
}"""),
    "all slots are read": ("trap_kernel<<<rows, 1024, 0, stream>>>(x, y, n);", """{
  __shared__ float of_warp[32];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = v;
  __syncthreads();
  v = of_warp[threadIdx.x % 32];
  for (int offset = 16; offset > 0; offset /= 2) v += __shfl_xor_sync(0xffffffffu, v, offset);
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] - v;
}"""),
    "own elements, no barrier": (ROWS, """{
  __shared__ float line[4096];
  for (int i = threadIdx.x; i < n; i += blockDim.x) line[i] = x[blockIdx.x * n + i] * 3;
  for (int i = threadIdx.x; i < n; i += blockDim.x) line[i] = line[i] * line[i];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = line[i] + x[i];
}"""),
    "own elements of y, no barrier": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * 3;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (x[blockIdx.x * n + i] > 0) y[blockIdx.x * n + i] += 1;
  }
}"""),
    "a reference": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float& here = y[blockIdx.x * n + i];
    here = here * 2 + x[blockIdx.x * n + i];
  }
}"""),
    "two fields": (ROWS, """{
  float2 sums = {0, 0};
  for (int i = threadIdx.x; i < n; i += blockDim.x) { sums.x += x[blockIdx.x * n + i]; sums.y += sums.x; }
  y[blockIdx.x * n + threadIdx.x % n] = sums.y;
}"""),
    "a tree with the barrier first": (ROWS, """{
  __shared__ float partial[128];
  float v = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[blockIdx.x * n + i];
  partial[threadIdx.x] = v;
  for (int s = blockDim.x / 2; s >= 1; s /= 2) {
    __syncthreads();
    if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
  }
  __syncthreads();
  const float total = partial[0];
  float* row = y + blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) row[i] = x[blockIdx.x * n + i] + total;
  row = y;
  for (int i = threadIdx.x; i < n; i += blockDim.x) row[blockIdx.x * n + i] *= 2;
}"""),
    "a pointer that moves by itself": (ROWS, """{
  y += blockIdx.x * n * (y != nullptr);
  x = x + blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[i] = x[i] * 5;
}"""),
    "rounds": (ROWS, """{
  for (int k = 0; threadIdx.x + k * blockDim.x < n; k++) y[blockIdx.x * n + threadIdx.x + k * blockDim.x] = x[blockIdx.x * n + (k * blockDim.x + threadIdx.x)];
  for (int base = 0; base < n; base += blockDim.x) {
    int i = base + threadIdx.x;
    if (i >= n) break;
    y[blockIdx.x * n + i] += 1;
  }
  int j = threadIdx.x;
  while (j < n) {
    y[blockIdx.x * n + j] *= 2;
    j += blockDim.x;
  }
}"""),
    "a row a thread, its largest element and a count": (BY_THREADS, """{
  int row = threadIdx.x + blockIdx.x * blockDim.x;
  if (row < rows) {
    float most = 0.0f;
    int count = 0;
    for (int i = 0; i < n; ++i) {
      float v = fabsf(x[row * n + i]);
      if (v > most) most = v;
      if (x[row * n + i] > 0) count++;
    }
    const float scale = most / 127.0f;
    for (int i = 0; i < n; ++i) y[row * n + i] = rintf(x[row * n + i] / scale) + count;
  }
}"""),
    "a row a thread, of a length of its own": (BY_THREADS, """{
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const float* own = x + row * n;
  float high = own[row], low = high;
  for (int64_t i = row + 1; i < n - row; ++i) {
    high = fmaxf(high, own[i]);
    low = fminf(low, own[i]);
  }
  for (int i = 0; i < n; i++) y[row * n + i] = high - low;
}"""),
    "a thread's row in place and by halves": (BY_THREADS.replace("(rows + 63) / 64", "2"), """{
  const int64_t stride = blockDim.x * gridDim.x;
  for (int64_t row = blockIdx.x * blockDim.x + threadIdx.x; row < rows; row += stride) {
    const int64_t half = n / 2;
    float norm = 0;
    for (int64_t i = 0; i < half; ++i) {
      const float a = y[row * n + i], b = y[row * n + half + i];
      y[row * n + i] = a * cosf(x[i]) - b * sinf(x[i]);
      y[row * n + half + i] = b * cosf(x[i]) + a * sinf(x[i]);
      norm += a * a + b * b;
    }
    norm = sqrtf(norm);
    for (int64_t i = 0; i < half; ++i) {
      y[row * n + i] /= norm;
      y[row * n + half + i] /= norm;
    }
  }
}"""),
}  # fmt: skip
STRUCTURE = (
    "vectorize",
    "block_per_row",
    "grid_stride",
    "canonicalize_reductions",
    "cache_row_in_registers",
    "trim_vector_tail",
)
SHAPES = [(3, 64), (2, 129), (5, 36), (1, 512), (2, 1030)]


def source(name: str) -> str:
    launch, body = TRAPS[name]
    arguments = ", ".join(
        ("const float* x", "float* y", "int64_t n", *(["int64_t rows"] if "n, rows)" in launch else []))
    )
    return f"{HEAD}__global__ void trap_kernel({arguments}) {body}\n" + ENTRY.format(launch=launch)


def variants(text: str) -> dict[str, str]:
    """The steps that change a kernel's structure, each alone, and all steps together, where they apply."""
    found: dict[str, str] = {}
    for steps in [*((step,) for step in STRUCTURE), tuple(rewrite.name for rewrite in ordered("cuda"))]:
        here = text
        for step in steps:
            here = applied_step(step, here, FACTS) or here
        if here != text and here not in found.values():
            found[" + ".join(steps)] = here
    return found


def outputs(text: str) -> list[torch.Tensor]:
    results = []
    with tempfile.TemporaryDirectory() as scratch:
        built = emulation.library(text, Path(scratch))
        for rows, n in SHAPES:
            generator = torch.Generator().manual_seed(rows * n)
            x = torch.randn(rows * n, generator=generator)
            padded = torch.full((rows * n + 640,), 0.5)
            padded[: rows * n] = torch.randn(rows * n, generator=generator)
            pointers = (ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(padded.data_ptr()))
            built.trap(*pointers, ctypes.c_int64(rows), ctypes.c_int64(n), ctypes.c_void_p(0))
            results.append(padded.clone())
    return results


def _answer(text: str, answers: multiprocessing.Queue) -> None:
    answers.put([result.tolist() for result in outputs(text)])


def outputs_apart(text: str) -> list[torch.Tensor]:
    """In a process of its own: a wrong rewrite may crash, or never end."""
    context = multiprocessing.get_context("fork")
    answers: multiprocessing.Queue = context.Queue()
    process = context.Process(target=_answer, args=(text, answers))
    process.start()
    try:
        found = answers.get(timeout=60)
    except queue.Empty as error:
        process.kill()
        raise AssertionError(f"the rewritten kernel crashed or does not end:\n{text}") from error
    process.join()
    return [torch.tensor(values) for values in found]


@pytest.mark.parametrize("name", TRAPS)
def test_rewrites_keep_what_a_kernel_computes(name: str) -> None:
    text = source(name)
    wanted, made = outputs_apart(text), variants(text)
    assert ("block_per_row" in made) == name.startswith("a row a thread")
    for steps, changed in made.items():
        for got, want, shape in zip(outputs_apart(changed), wanted, SHAPES, strict=True):
            assert torch.allclose(got, want, rtol=2e-5, atol=1e-5), f"{steps} at {shape}:\n{changed}"
