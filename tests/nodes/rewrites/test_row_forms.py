"""Forms of well-known projects' row kernels: widths in templates, trees that are written out."""

from __future__ import annotations

import pytest

from tests.nodes.rewrites.steps import after, refused, same, stays, where_they_apply

TEMPLATES = """\
#include <math.h>
#define WARP_SIZE 32

static __device__ float warp_reduce(float x) {
  for (int offset = 16; offset > 0; offset >>= 1) x += __shfl_xor_sync(0xffffffff, x, offset, 32);
  return x;
}

template <int block_size>
static __global__ void norm_kernel(float* out, const float* inp, const float* weight, const int N, const int C) {
  const int row = blockIdx.x + gridDim.x * blockIdx.y;
  inp += row * C;
  out += row * C;
  float sum = 0.0f;
  for (int col = threadIdx.x; col < C; col += block_size) sum += inp[col] * inp[col];
  sum = warp_reduce(sum);
  if constexpr (block_size > WARP_SIZE) {
    static_assert(block_size <= 1024, "unexpected block_size");
    __shared__ float slots[32];
    if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = sum;
    __syncthreads();
    sum = 0.0f;
    if (threadIdx.x % 32 < block_size / 32) sum = slots[threadIdx.x % 32];
    sum = warp_reduce(sum);
  }
  const float scale = rsqrtf(sum / C + 1e-5f);
  for (int col = threadIdx.x; col < C; col += block_size) out[col] = inp[col] * scale * weight[col];
}

extern "C" void fuzz_float32(const float* x, const float* w, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  const dim3 blocks(rows, 1, 1);
  if (n < 64) {
    norm_kernel<WARP_SIZE><<<blocks, WARP_SIZE, 0, stream>>>(y, x, w, rows, n);
  } else {
    norm_kernel<256><<<blocks, dim3(256, 1, 1), 0, stream>>>(y, x, w, rows, n);
  }
}
"""
HARRIS = """\
#include <math.h>

template <unsigned int blockSize>
__device__ void warpReduce(volatile float* sdata, unsigned int tid) {
  if (blockSize >= 64) sdata[tid] += sdata[tid + 32];
  if (blockSize >= 32) sdata[tid] += sdata[tid + 16];
  if (blockSize >= 16) sdata[tid] += sdata[tid + 8];
  if (blockSize >= 8) sdata[tid] += sdata[tid + 4];
  if (blockSize >= 4) sdata[tid] += sdata[tid + 2];
  if (blockSize >= 2) sdata[tid] += sdata[tid + 1];
}

template <unsigned int blockSize>
__global__ void norm_kernel(float* out, const float* inp, const float* weight, int N, int C) {
  __shared__ float sdata[blockSize];
  unsigned int tid = threadIdx.x;
  float sum = 0.0f;
  for (int i = tid; i < C; i += blockSize) sum += inp[blockIdx.x * C + i] * inp[blockIdx.x * C + i];
  sdata[tid] = sum;
  __syncthreads();
  if (blockSize >= 512) { if (tid < 256) sdata[tid] += sdata[tid + 256]; __syncthreads(); }
  if (blockSize >= 256) { if (tid < 128) sdata[tid] += sdata[tid + 128]; __syncthreads(); }
  if (blockSize >= 128) { if (tid < 64) sdata[tid] += sdata[tid + 64]; __syncthreads(); }
  if (tid < 32) warpReduce<blockSize>(sdata, tid);
  __syncthreads();
  const float scale = rsqrtf(sdata[0] / C + 1e-5f);
  for (int i = tid; i < C; i += blockSize) out[blockIdx.x * C + i] = inp[blockIdx.x * C + i] * scale * weight[i];
}

extern "C" void fuzz_float32(const float* x, const float* w, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  norm_kernel<256><<<rows, 256, 0, stream>>>(y, x, w, rows, n);
}
"""
TREE = """\
#include <math.h>

__global__ void norm_kernel(float* out, const float* inp, const float* weight, int N, int C) {
  float sum = 0.0f;
  for (int j = threadIdx.x; j < C; j += blockDim.x) sum += inp[blockIdx.x * C + j] * inp[blockIdx.x * C + j];
  __shared__ float sdata[256];
  sdata[threadIdx.x] = sum;
  __syncthreads();
  for (int d = 128; d > 0; d >>= 1) {
    if (threadIdx.x < d) sdata[threadIdx.x] += sdata[threadIdx.x + d];
    __syncthreads();
  }
  const float scale = rsqrtf(sdata[0] / C + 1e-5f);
#pragma unroll 4
  for (int j = threadIdx.x; j < C; j += 256) {
    out[blockIdx.x * C + j] = inp[blockIdx.x * C + j] * scale * weight[j];
  }
}

extern "C" void fuzz_float32(const float* x, const float* w, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  norm_kernel<<<rows, 256, 0, stream>>>(y, x, w, rows, n);
}
"""


PREPARE = "single_assignment symbolic_block_size canonicalize_reductions vectorize"


def in_registers(text: str) -> str:
    return after(where_they_apply(text, PREPARE), "cache_row_in_registers")


def test_one_warp_alone_is_no_reduction_over_a_block() -> None:
    alone = TEMPLATES.replace(
        "norm_kernel<256><<<blocks, dim3(256, 1, 1)", "norm_kernel<WARP_SIZE><<<blocks, WARP_SIZE"
    )
    assert refused(alone, "canonicalize_reductions")


# Widths in templates, blocks of one warp among them, and grids of more than one dimension.


def test_rows_over_a_grid_of_one_dimension_are_kept() -> None:
    assert "norm_kernel_in_registers" in in_registers(TEMPLATES)
    wide = TEMPLATES.replace("blocks(rows, 1, 1)", "blocks(1, rows, 1)")
    assert refused(where_they_apply(wide, PREPARE), "cache_row_in_registers")


# Sums to which a thread without elements adds something: they are others with another number of threads.


COUNTED = (
    "symbolic_block_size canonicalize_reductions vectorize",
    "cache_row_in_registers cluster_split",
)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float sum = 0.0f;", "float sum = 1.0f;"),
        ("sdata[threadIdx.x] = sum;", "sum += 2.0f;\n  sdata[threadIdx.x] = sum;"),
        ("sdata[threadIdx.x] = sum;", "sum = N;\n  sdata[threadIdx.x] = sum;"),
    ],
)
def test_blocks_stay_as_wide_as_their_sums_count(old: str, new: str) -> None:
    plain, other = after(TREE, COUNTED[0]), after(TREE.replace(old, new), COUNTED[0])
    for step in COUNTED[1].split():
        assert not refused(plain, step) and refused(other, step), step


def test_what_the_first_thread_adds_or_all_scale_is_no_matter() -> None:
    for more in ("if (threadIdx.x == 0) sum += 1.0f;", "sum *= 2.0f;", "sum = sum / 3.0f;", "sum = 2 * (sum - 0.0f);"):
        text = TREE.replace("sdata[threadIdx.x] = sum;", f"{more}\n  sdata[threadIdx.x] = sum;")
        after(text, COUNTED[0], "cache_row_in_registers")


# Trees that are written out, their last warp through volatile memory.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("norm_kernel<256><<<rows, 256,", "norm_kernel<256><<<rows, n,"),  # blocks that may not be what the tree is for
        ("norm_kernel<256><<<rows, 256,", "norm_kernel<256><<<rows, 512,"),  # half of the block is left out
        ("sdata[tid + 128]; __syncthreads();", "sdata[tid + 128];"),
        ("sdata[tid + 4]", "sdata[tid + 3]"),
        ("  const float scale", "  out[tid] = sdata[tid];\n  const float scale"),
        ("  sdata[tid] = sum;", "  sdata[tid + 1] = sum;"),
    ],
)
def test_other_trees_stay(old: str, new: str) -> None:
    assert stays("canonicalize_reductions", HARRIS, old, new)


def test_volatile_accesses_are_not_written_out_as_plain_ones() -> None:
    assert stays("inline_device_functions", HARRIS.replace("volatile ", ""), "(float* sdata", "(volatile float* sdata")


# What they compute.


def test_a_store_does_not_go_through_a_pointer_to_constants() -> None:
    text = """\
__global__ void twice(float* x, int n) {
  const float* row = x + blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = row[i];
    x[blockIdx.x * n + i] = 2.0f * v;
  }
}
extern "C" void fuzz_float32(float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  twice<<<rows, 256, 0, stream>>>(y, n);
}
"""
    same({"twice": (text, after(text, "vectorize"))})


def test_they_compute_the_same() -> None:
    """The last warp of `HARRIS` runs in lockstep, which the emulation's do not; its row is the tree's."""
    texts = {"tree": TREE, "templates": TEMPLATES, "harris": HARRIS}
    same({form: (TREE if text == HARRIS else text, in_registers(text)) for form, text in texts.items()})
