"""Forms of well-known projects' row kernels: blocks as wide as their row, widths in templates, trees that are written out."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest
import torch

from nodes.policies.rules import applied_step
from nodes.rewrites import Facts
from tests.nodes.rewrites.emulate.emulation import library
from tests.nodes.rewrites.steps import H200, INPUTS, body, check, where_they_apply
from tests.nodes.rewrites.steps import after as steps_after
from tests.nodes.rewrites.test_vectorize_unaligned_rows import at, spec

ROWS = Facts(spec=spec(at(4096), at(2048)), device=H200)
CUB = (INPUTS / "scaled_rms_norm/baseline.cub.cu").read_text()
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

extern "C" void norm(float* out, const float* inp, const float* weight, long N, long C) {
  const dim3 blocks(N, 1, 1);
  if (C < 64) {
    norm_kernel<WARP_SIZE><<<blocks, WARP_SIZE, 0, 0>>>(out, inp, weight, N, C);
  } else {
    norm_kernel<256><<<blocks, dim3(256, 1, 1), 0, 0>>>(out, inp, weight, N, C);
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

extern "C" void norm(float* out, const float* inp, const float* weight, long N, long C) {
  norm_kernel<256><<<N, 256, 0, 0>>>(out, inp, weight, N, C);
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

extern "C" void norm(float* out, const float* inp, const float* weight, long N, long C) {
  norm_kernel<<<N, 256, 0, 0>>>(out, inp, weight, N, C);
}
"""


PREPARE = ("single_assignment", "symbolic_block_size", "canonicalize_reductions",
           "redundant_broadcast", "vectorize")  # fmt: skip


def after(text: str, *steps: str) -> str:
    return steps_after(text, *steps, facts=ROWS)


def in_registers(text: str) -> str:
    return after(where_they_apply(text, *PREPARE, facts=ROWS), "cache_row_in_registers")


# Blocks as wide as their row.

ADD = "using Add = cuda::std::plus<>;"


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("sum = 0.0f;", "sum = 1.0f;"),  # a thread more would bring one more
        ("sum = 0.0f;", "sum = 0.0f;\n  square_sum += (float)in[threadIdx.x];"),
        ("sum = 0.0f;", "sum = 0.0f;\n  const int most = blockDim.x;\n  if (most > 7) square_sum = 0.0f;"),
        ("std::min<int64_t>(hidden, 1024)", "hidden"),
        ("std::min<int64_t>(hidden, 1024)", "std::max<int64_t>(hidden, 1024)"),
        ("std::min<int64_t>(hidden, 1024)", "std::min<int64_t>(hidden, 1000)"),
        ("  scaled_rms_norm_kernel<__half><<<", "  if (block.x > 7) return;\n  scaled_rms_norm_kernel<__half><<<"),
    ],
)
def test_other_blocks_stay_as_wide_as_they_are(old: str, new: str) -> None:
    assert applied_step("canonicalize_reductions", CUB, ROWS) is not None
    assert old in CUB and applied_step("canonicalize_reductions", CUB.replace(old, new), ROWS) is None


def test_short_names_of_reductions() -> None:
    most = CUB.replace("square_sum += x * x;", "square_sum = fmaxf(square_sum, x);").replace("min<", "max<")
    most = most.replace("std::max<int64_t>(hidden, 1024)", "1024")
    for functor in ("using Add = cuda::maximum<>;", "using Add = cub::Max;"):
        assert "block_max<0>(square_sum);" in after(most.replace(ADD, functor), "canonicalize_reductions")
    two = "#if NEW\nusing Add = cuda::maximum<>;\n#else\nusing Add = cub::Min;\n#endif\n"
    assert applied_step("canonicalize_reductions", most.replace(ADD, two), ROWS) is None


# Widths in templates, blocks of one warp among them, and grids of more than one dimension.


def test_one_warp_alone_is_no_reduction_over_a_block() -> None:
    text = TEMPLATES.replace("norm_kernel<256><<<blocks, dim3(256, 1, 1)", "norm_kernel<WARP_SIZE><<<blocks, WARP_SIZE")
    assert applied_step("canonicalize_reductions", text, ROWS) is None


def test_rows_over_a_grid_of_one_dimension_are_kept() -> None:
    assert "norm_kernel_in_registers" in in_registers(TEMPLATES)
    wide = TEMPLATES.replace("blocks(N, 1, 1)", "blocks(N / 2, 2, 1)")
    assert applied_step("cache_row_in_registers", where_they_apply(wide, *PREPARE, facts=ROWS), ROWS) is None


# Pragmas of loops that go, and results that only a branch knows.


def test_a_pair_that_the_first_thread_joins_for_itself() -> None:
    text = """\
#include <math.h>
struct MD { float m; float d; };
__device__ MD merge(MD a, MD b) {
  const bool larger = a.m > b.m;
  const MD big = larger ? a : b;
  const MD small = larger ? b : a;
  return {big.m, big.d + small.d * expf(small.m - big.m)};
}
__global__ void rows(const float* x, float* y, int n) {
  __shared__ MD partials[8];
  MD md{-1e30f, 0.0f};
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    MD one;
    one.m = x[blockIdx.x * n + i];
    one.d = 1.0f;
    md = merge(md, one);
  }
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) {
    MD other;
    other.m = __shfl_xor_sync(0xffffffffu, md.m, offset);
    other.d = __shfl_xor_sync(0xffffffffu, md.d, offset);
    md = merge(md, other);
  }
  if (threadIdx.x % 32 == 0) partials[threadIdx.x / 32] = md;
  __syncthreads();
  if (threadIdx.x == 0) {
    MD total = partials[0];
    for (int w = 1; w < 8; ++w) total = merge(total, partials[w]);
    y[blockIdx.x] = total.m + logf(total.d);
  }
}
extern "C" void f(const float* x, float* y, long rows_, long n) { rows<<<rows_, 256, 0, 0>>>(x, y, n); }
"""
    kernel = body(after(text, "online_reduction"), "rows")
    assert "#pragma" not in kernel and "partials" not in kernel
    assert "of_block = block_shifted_sum<0>(md.m, md.d, expf); if (threadIdx.x == 0) {" in kernel
    assert "y[blockIdx.x] = of_block.shift + logf(of_block.sum);" in kernel
    assert applied_step("online_reduction", text.replace("int w = 1", "int w = 2"), ROWS) is None
    later = text.replace("    y[blockIdx.x] =", "    total.d += 1.0f;\n    y[blockIdx.x] =")
    assert applied_step("online_reduction", later, ROWS) is None


# Sums to which a thread without elements adds something: they are others with another number of threads.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("float sum = 0.0f;", "float sum = 1.0f;"),
        ("sdata[threadIdx.x] = sum;", "sum += 2.0f;\n  sdata[threadIdx.x] = sum;"),
        ("sdata[threadIdx.x] = sum;", "sum = N;\n  sdata[threadIdx.x] = sum;"),
    ],
)
def test_blocks_stay_as_wide_as_their_sums_count(old: str, new: str) -> None:
    plain = after(TREE, "symbolic_block_size", "canonicalize_reductions", "vectorize")
    other = after(TREE.replace(old, new), "symbolic_block_size", "canonicalize_reductions", "vectorize")
    for step in ("cache_row_in_registers", "several_rows_per_block", "cluster_split"):
        assert applied_step(step, plain, ROWS) is not None
        assert applied_step(step, other, ROWS) is None, step


def test_what_the_first_thread_adds_or_all_scale_is_no_matter() -> None:
    for more in ("if (threadIdx.x == 0) sum += 1.0f;", "sum *= 2.0f;", "sum = sum / 3.0f;", "sum = 2 * (sum - 0.0f);"):
        text = TREE.replace("sdata[threadIdx.x] = sum;", f"{more}\n  sdata[threadIdx.x] = sum;")
        after(text, "symbolic_block_size", "canonicalize_reductions", "vectorize", "cache_row_in_registers")


# Trees that are written out, their last warp through volatile memory.


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("norm_kernel<256><<<N, 256,", "norm_kernel<256><<<N, C,"),  # blocks that may not be what the tree is for
        ("norm_kernel<256><<<N, 256,", "norm_kernel<256><<<N, 512,"),  # half of the block is left out
        ("sdata[tid + 128]; __syncthreads();", "sdata[tid + 128];"),
        ("sdata[tid + 4]", "sdata[tid + 3]"),
        ("  const float scale", "  out[tid] = sdata[tid];\n  const float scale"),
        ("  sdata[tid] = sum;", "  sdata[tid + 1] = sum;"),
    ],
)
def test_other_trees_stay(old: str, new: str) -> None:
    assert old in HARRIS
    assert applied_step("canonicalize_reductions", HARRIS.replace(old, new), ROWS) is None


def test_volatile_accesses_are_not_written_out_as_plain_ones() -> None:
    assert applied_step("inline_device_functions", HARRIS, ROWS) is None
    assert applied_step("inline_device_functions", HARRIS.replace("volatile ", ""), ROWS) is not None


# What they compute.


@pytest.mark.parametrize("text", [TREE, HARRIS, TEMPLATES], ids=["tree", "harris", "templates"])
def test_they_compute_the_same(text: str, tmp_path: Path) -> None:
    computes_the_norm(in_registers(text), False, tmp_path)


def computes_the_norm(text: str, centred: bool, folder: Path) -> None:
    built = library(text, folder)
    for rows, columns in ((2, 5), (4, 96), (2, 515), (2, 1032)):
        x, weight = (torch.randn(n, columns, generator=torch.Generator().manual_seed(columns)) for n in (rows, 1))
        out = torch.full((rows, columns), 7.0)
        pointers = (ctypes.c_void_p(t.data_ptr()) for t in (out, x, weight))
        built.norm(*pointers, ctypes.c_long(rows), ctypes.c_long(columns))
        held = x - x.mean(-1, keepdim=True) if centred else x
        torch.testing.assert_close(out, held * torch.rsqrt(held.pow(2).mean(-1, keepdim=True) + 1e-5) * weight)


def test_a_row_that_cub_reduces_stays_in_registers(tmp_path: Path) -> None:
    sizes = (f"float16:tokens=3,hidden={n}" for n in (5, 96, 515, 1032))
    text = in_registers(CUB).replace("#include <cub/cub.cuh>\n#include <cuda/std/functional>\n", "").replace(ADD, "")
    check(text, tmp_path, INPUTS / "scaled_rms_norm", "0", "1", *sizes)


def test_a_store_does_not_go_through_a_pointer_to_constants() -> None:
    text = """\
__global__ void twice(float* x, int n) {
  const float* row = x + blockIdx.x * n;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float v = row[i];
    x[blockIdx.x * n + i] = 2.0f * v;
  }
}
extern "C" void f(float* x, long rows, long n) { twice<<<rows, 256, 0, 0>>>(x, n); }
"""
    new = after(text, "vectorize")
    assert "load_lanes<VEC>(&row[first])" in new and "store_lanes(&x[blockIdx.x * n + first], " in new
