"""Kernels with traps: whatever the rewrites make of them must compute what they computed before.

Each takes x and y, float [rows, n], and changes y. Where a rewrite refuses, nothing is compared. What the fuzzer
draws is not here, nor what a table of refusals has.
"""

from __future__ import annotations

from nodes.rewrites import ordered
from tests.nodes.rewrites.steps import same

HEAD = "#include <cuda_runtime.h>\n#include <stdint.h>\n\n"
ENTRY = """
extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {{
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
TRAPS = {
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
    "sum over rows of a block": ("trap_kernel<<<rows < 2 ? rows : 2, 128, 0, stream>>>(x, y, n, rows);", """{
  float v = 0;
  for (int row = blockIdx.x; row < rows; row += gridDim.x)
    for (int i = threadIdx.x; i < n; i += blockDim.x) v += x[row * n + i];
  if (threadIdx.x < n) y[blockIdx.x * n + threadIdx.x] = v;
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
    "a pointer that moves to an odd place": (ROWS, """{
  x += blockIdx.x * n;
  y += blockIdx.x * n + 1;
  for (int i = threadIdx.x; i < n - 1; i += blockDim.x) y[i] = x[i];
}"""),
    "blocks have places of their own": ("trap_kernel<<<3, 128, 0, stream>>>(x, y, rows * n);", """{
  float v = 0;
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) v += x[i];
  if (blockIdx.x * blockDim.x + threadIdx.x < n) y[blockIdx.x * blockDim.x + threadIdx.x] = v;
}"""),
    "broadcast along rows": ("trap_kernel<<<(rows * n + 127) / 128, 128, 0, stream>>>(x, y, n, rows);", """{
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const int row = i / n, column = i % n;
  y[i] = x[i] + x[column] * x[row * n];
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
  const bool whole = n % 4 == 0 && ((uintptr_t)from | (uintptr_t)to) % 16 == 0;
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
    "own elements of y, no barrier": (ROWS, """{
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[blockIdx.x * n + i] = x[blockIdx.x * n + i] * 3;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (x[blockIdx.x * n + i] > 0) y[blockIdx.x * n + i] += 1;
  }
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
STRUCTURE = [
    "vectorize",
    "grid_stride",
    "canonicalize_reductions",
    "cache_row_in_registers",
    "trim_vector_tail",
]


def source(name: str) -> str:
    launch, body = TRAPS[name]
    rows = ", int64_t rows" if "n, rows)" in launch else ""
    return f"{HEAD}__global__ void trap_kernel(const float* x, float* y, int64_t n{rows}) {body}\n" + ENTRY.format(
        launch=launch
    )


def test_rewrites_keep_what_a_kernel_computes() -> None:
    """The steps that change a kernel's structure, each alone, and all steps together."""
    every = " ".join(rewrite.name for rewrite in ordered("cuda"))
    same({f"{name}, {steps[:20]}": (source(name), steps) for name in TRAPS for steps in [*STRUCTURE, every]})
