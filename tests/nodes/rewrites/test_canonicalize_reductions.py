"""Other people's reductions over a block: what canonicalize_reductions makes of them, and what they leave alone."""

from __future__ import annotations

import re

import pytest

from nodes.policies.rules import apply_step
from tests.nodes.rewrites.steps import FACTS, INPUTS, after, refused, same, stays, where_they_apply
from tests.nodes.rewrites.test_cuda_rewrites import TREE

WARP_DOWN = """\
__inline__ __device__ float warpReduceSum(float val) {
  for (int offset = 16; offset > 0; offset /= 2) val += __shfl_down_sync(0xffffffff, val, offset);
  return val;
}
"""
FASTER_TRANSFORMER = """\
#define FINAL_MASK 0xffffffff
template <typename T>
__inline__ __device__ T warpReduceSum(T val) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) val += __shfl_xor_sync(FINAL_MASK, val, mask, 32);
  return val;
}
/* Calculate the sum of all elements in a block */
template <typename T>
__inline__ __device__ T blockReduceSum(T val) {
  static __shared__ T shared[32];
  int lane = threadIdx.x & 0x1f;
  int wid = threadIdx.x >> 5;
  val = warpReduceSum<T>(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < (blockDim.x / 32.f)) ? shared[lane] : (T)(0.0f);
  val = warpReduceSum<T>(val);
  return val;
}
"""
HARRIS = (
    WARP_DOWN
    + """\
__inline__ __device__ float blockReduceSum(float val) {
  static __shared__ float shared[32];
  int lane = threadIdx.x % warpSize;
  int wid = threadIdx.x / warpSize;
  val = warpReduceSum(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < blockDim.x / warpSize) ? shared[lane] : 0;
  if (wid == 0) val = warpReduceSum(val);
  return val;
}
"""
)
PYTORCH = """\
template <typename T>
__device__ __forceinline__ T WarpReduceSum(T value) {
#pragma unroll
  for (int offset = (32 >> 1); offset > 0; offset >>= 1) {
    value += __shfl_down_sync(~0u, value, offset, warpSize);
  }
  return value;
}
template <typename T>
__device__ T BlockReduceSum(T value, T* shared) {
  const int tid = threadIdx.x;
  const int lid = tid % 32;
  const int wid = tid / 32;
  value = WarpReduceSum(value);
  __syncthreads();  // prevent races when BlockReduces are called in a row.
  if (lid == 0) {
    shared[wid] = value;
  }
  __syncthreads();
  value = (tid < blockDim.x / 32) ? shared[lid] : T(0);
  if (wid == 0) {
    value = WarpReduceSum(value);
  }
  return value;
}
"""
FOR_ALL = """\
template <int kThreads>
__device__ float sum_for_all(float v) {
  constexpr int kWarps = kThreads / 32;
  __shared__ float slots[kWarps];
  __shared__ float result;
  for (int o = 16; o >= 1; o >>= 1) v = v + __shfl_xor_sync(-1, v, o);
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x == 0) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += slots[w];
    result = total;
  }
  __syncthreads();
  return result;
}
"""
TOLD = """\
  if (threadIdx.x == 0) {
    total = fmaxf(sqrtf(sum), eps);
  }
  __syncthreads();"""
FORMS = {
    "faster transformer": (FASTER_TRANSFORMER, "  sum = blockReduceSum<float>(sum);\n" + TOLD),
    "harris": (HARRIS, "  sum = blockReduceSum(sum);\n" + TOLD),
    "pytorch": (PYTORCH, "  __shared__ float buffer[32];\n  sum = BlockReduceSum(sum, buffer);\n" + TOLD),
    "for all": (FOR_ALL, "  sum = sum_for_all<256>(sum);\n" + TOLD),
    "inline, one warp": (WARP_DOWN, """\
  __shared__ float partial[32];
  const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  sum = warpReduceSum(sum);
  if (lane == 0) partial[warp] = sum;
  __syncthreads();
  if (warp == 0) {
    sum = lane < blockDim.x / 32 ? partial[lane] : 0.0f;
    sum = warpReduceSum(sum);
    if (lane == 0) total = fmaxf(sqrtf(sum), eps);
  }
  __syncthreads();"""),
    "inline, in the slots": ("", """\
  __shared__ float partial[32];
  for (int offset = 16; offset > 0; offset >>= 1) {
    sum += __shfl_down_sync(0xffffffffu, sum, offset);
  }
  int lane = threadIdx.x % 32;
  int warp = threadIdx.x / 32;
  if (lane == 0) { partial[warp] = sum; }
  __syncthreads();
  if (warp == 0) {
    float v = (lane < (blockDim.x + 31) / 32) ? partial[lane] : 0.0f;
    for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffffu, v, offset);
    if (lane == 0) partial[0] = v;
  }
  __syncthreads();
  if (threadIdx.x == 0) total = fmaxf(sqrtf(partial[0]), eps);
  __syncthreads();"""),
    "inline, one thread": ("", """\
  __shared__ float partial[8];
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    float all = 0.0f;
    for (int w = 0; w < 8; w++) all += partial[w];
    total = fmaxf(sqrtf(all), eps);
  }
  __syncthreads();"""),
    "inline, every warp": ("", """\
  __shared__ float partial[32];
  for (int offset = 16; offset > 0; offset >>= 1) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  float all = threadIdx.x % 32 < blockDim.x / 32 ? partial[threadIdx.x % 32] : 0.0f;
  for (int offset = 16; offset > 0; offset >>= 1) all += __shfl_xor_sync(0xffffffffu, all, offset);
  if (threadIdx.x == 0) total = fmaxf(sqrtf(all), eps);
  __syncthreads();"""),
}  # fmt: skip
"""Helpers, and what stands between a thread's `sum` and everybody's `total`."""
KERNEL = """\
#include <stdint.h>

{helpers}
__global__ void normalise(const float* x, float* y, int columns, float eps) {{
  __shared__ float total;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {{
    const float v = x[blockIdx.x * columns + i];
    sum += v * v;
  }}
{reduction}
  for (int i = threadIdx.x; i < columns; i += blockDim.x) y[blockIdx.x * columns + i] = x[blockIdx.x * columns + i] / total;
}}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {{
  normalise<<<rows, 256, 0, stream>>>(x, y, n, 1e-6f);
}}
"""


def source(reduction: str, helpers: str = FASTER_TRANSFORMER) -> str:
    return KERNEL.format(helpers=helpers, reduction=reduction)


SOURCES = {form: source(reduction, helpers) for form, (helpers, reduction) in FORMS.items()}


def test_every_form_becomes_ours_and_computes_the_same() -> None:
    made = {form: after(text, "canonicalize_reductions") for form, text in SOURCES.items()}
    for form, new in made.items():
        assert new.count("__shfl") == 2 and new.count("__device__") == 1, f"{form}: something of theirs is left"
        assert refused(new, "canonicalize_reductions")
    same({form: (text, made[form]) for form, text in SOURCES.items()})


def reduced(reduction: str, helpers: str = FASTER_TRANSFORMER, width: str = "256") -> str:
    """The kernel behind canonicalize_reductions alone, "" where that refuses."""
    return (
        apply_step(
            "canonicalize_reductions", source(reduction, helpers).replace("rows, 256,", f"rows, {width},"), FACTS
        )
        or ""
    )


LARGEST = FASTER_TRANSFORMER.replace("val += ", "val = fmaxf(val, ").replace(", mask, 32)", ", mask, 32))")
LEAST = LARGEST.replace(
    "fmaxf(val, __shfl_xor_sync(FINAL_MASK, val, mask, 32))", "min(__shfl_xor_sync(FINAL_MASK, val, mask), val)"
)
CALL = "  sum = blockReduceSum<float>(sum);\n" + TOLD
STORES = PYTORCH.replace("T* shared) {", "T* out) {\n  static __shared__ T shared[32];")
STORES = "  if (tid == 0) out[0] = value;\n  return value;".join(STORES.rsplit("  return value;", 1))


@pytest.mark.parametrize(
    ("reduction", "helpers", "width", "becomes"),
    [
        # Extremes keep the bound that they had.
        (CALL, LARGEST.replace("(T)(0.0f)", "-INFINITY"), "256", "sum_of_block = block_max<0>(sum);"),
        (CALL, LARGEST.replace("(T)(0.0f)", "-1e20f"), "256", "sum_of_block = fmaxf(block_max<0>(sum), -1e20f);"),
        (CALL, LEAST.replace("(T)(0.0f)", "std::numeric_limits<float>::infinity()"), "256", "sum_of_block = block_min<0>(sum);"),
        # The sum is in global memory too.
        ("  sum = BlockReduceSum(sum, y + blockIdx.x * columns);\n" + TOLD, STORES, "256", ""),
    ],
)  # fmt: skip
def test_other_reductions(reduction: str, helpers: str, width: str, becomes: str) -> None:
    new = reduced(reduction, helpers, width)
    assert becomes in new if becomes else not new


@pytest.mark.parametrize(
    ("behind", "barriers"),
    [("", 1), ("    __syncthreads();\n", 1), ("    if (columns == 7) continue;\n    __syncthreads();\n", 2)],
    ids=["none", "one", "one that a round may skip"],
)
def test_rounds_of_a_loop_are_kept_apart(behind: str, barriers: int) -> None:
    helpers = FASTER_TRANSFORMER.replace("  if (lane == 0) shared", "  __syncthreads();\n  if (lane == 0) shared")
    call = "    const float s = blockReduceSum<float>(sum);\n    if (threadIdx.x == 0) total = s;\n"
    loop = f"  for (int k = 0; k < columns; ++k) {{\n{call}{behind}  }}\n"
    new = reduced(loop, helpers)
    assert new and new[new.index("__global__") :].count("__syncthreads();") == barriers
    in_front = "    __syncthreads();\n    const float s = block_sum<0>(sum);\n" in new
    assert in_front == (not behind or "continue" in behind)
    others = loop.replace("const float s", "sum").replace("= s;", "= sum;")  # who go on with what they have
    assert reduced(loop, HARRIS) and not reduced(others, HARRIS)


@pytest.mark.parametrize("element", ["__half", "__nv_bfloat16", "T"])
def test_an_extreme_of_a_type_that_max_does_not_know_stays(element: str) -> None:
    largest = LARGEST.replace("fmaxf(", "__hmax(").replace("(T)(0.0f)", "shared[0]")
    call = f"  {element} part = {element}(sum);\n  part = blockReduceSum<{element}>(part);\n" + TOLD.replace(
        "sqrtf(sum)", "sqrtf(float(part))"
    )
    assert not reduced(call, largest)
    assert reduced(call.replace(element, "double"), largest.replace("__hmax(", "fmax("))


def test_a_second_reduction_through_the_same_slots() -> None:
    first = FORMS["inline, one warp"][1]
    again = first[first.index("  sum = warpReduceSum") :]
    text = source(f"{first}\n  sum = total + threadIdx.x;\n{again}", WARP_DOWN)
    new = after(text, "canonicalize_reductions")
    kernel = new[new.index("__global__") :]
    assert "__shfl" not in kernel and "partial" not in kernel and kernel.count("__shared__") == 1
    assert "block_sum<0>(sum)" in kernel and "block_sum<1>(sum)" in kernel, "slots that no barrier separates"


def test_a_tree_and_a_reduction_do_not_share_a_place() -> None:
    """A tree that canonicalize_reductions finds behind one of these once began with the same number."""
    helpers = FORMS["harris"][0]
    behind = "  float n_sum = sum * n;\n  n_sum = blockReduceSum(n_sum);\n  if (threadIdx.x == 0) y[0] = n_sum;\n  for (int i = threadIdx.x; i < n; i += blockDim.x) y["
    new = after(
        helpers + TREE.replace("  for (int i = threadIdx.x; i < n; i += blockDim.x) y[", behind),
        "canonicalize_reductions",
    )
    assert sorted(re.findall(r"block_sum<(\d)>", new)) == ["0", "1"]


INLINE = FORMS["inline, in the slots"][1]


WHOLE = {"helper": (CALL, FASTER_TRANSFORMER), "call": (CALL.replace("<float>", ""), HARRIS), "inline": (INLINE, "")}


@pytest.mark.parametrize(
    ("form", "old", "new"),
    [
        ("helper", "FINAL_MASK 0xffffffff", "FINAL_MASK 0x0000ffff"),
        ("helper", "FINAL_MASK 0xffffffff", "FINAL_MASK __activemask()"),
        ("helper", "mask = 16", "mask = 8"),
        ("helper", "mask > 0", "mask > 1"),
        ("helper", "val, mask, 32)", "val, mask, 16)"),
        ("helper", "val += __shfl", "val *= __shfl"),
        ("helper", "val += __shfl", "val -= __shfl"),
        ("helper", "val += __shfl_xor", "val += 2.0f * __shfl_xor"),
        ("helper", "(T)(0.0f)", "(T)(1.0f)"),
        ("helper", "threadIdx.x & 0x1f", "threadIdx.x & 0x3"),
        ("helper", "shared[32]", "shared[4]"),
        ("helper", "shared[32]", "shared[2][16]"),
        ("helper", "shared[wid] = val", "shared[lane] = val"),
        ("helper", "if (lane == 0) shared", "if (lane == 33) shared"),
        ("helper", "(blockDim.x / 32.f)", "(blockDim.x / 64.f)"),
        ("helper", "  __syncthreads();\n  val", "  val"),
        ("helper", "  __syncthreads();\n  val", "  if (lane == 0) __syncthreads();\n  val"),
        ("helper", "  return val;\n}\n/*", "  if (threadIdx.x > 4) return val;\n  return val + val;\n}\n/*"),
        ("helper", "static __shared__ T", "static __shared__ double"),
        ("helper", "int wid", "double kept = val; int wid"),
        ("helper", "val = warpReduceSum<T>(val);\n  return", "val = warpReduceSum<T>(val) / 2;\n  return"),
        ("helper", "val = warpReduceSum<T>(val);\n  return", "val = val > 0 ? warpReduceSum<T>(val) : val;\n  return"),
        ("helper", "val = warpReduceSum<T>(val);\n  return", "asm volatile(\"\");\n  val = warpReduceSum<T>(val);\n  return"),
        ("call", "if (threadIdx.x == 0) {", "if (threadIdx.x < 32) {"),  # who has it besides the first is theirs to know
        ("call", "if (threadIdx.x == 0) {", "if (columns > 3) {"),
        ("call", "rows, 256,", "rows, dim3(32, 8),"),
        ("call", "rows, 256,", "rows, 48,"),
        ("call", "rows, 256,", "rows, 2048,"),
        ("call", "sum = blockReduceSum(sum);", "sum += blockReduceSum(sum);"),
        ("call", "float blockReduceSum(float val)", "double blockReduceSum(double val)"),
        ("call", "sum = blockReduceSum(sum);", "if (columns > 5) sum = blockReduceSum(sum);"),
        ("inline", "partial[warp] = sum;", "partial[warp] = sum + 1;"),
        ("inline", "partial[warp] = sum;", "partial[lane] = sum;"),
        ("inline", "if (warp == 0) {", "if (warp == 9) {"),
        ("inline", "sqrtf(partial[0])", "sqrtf(partial[0] + partial[1])"),  # what is left in the slots
        ("inline", "sqrtf(partial[0])", "sqrtf(partial[0] + sum)"),  # a part of the sum
        ("inline", "__shfl_down_sync(0xffffffffu, sum, offset)", "__shfl_down_sync(0xffffu, sum, offset)"),
    ],
)  # fmt: skip
def test_what_is_no_reduction_of_the_whole_block_for_all_stays(form: str, old: str, new: str) -> None:
    reduction, helpers = WHOLE[form]
    assert stays("canonicalize_reductions", source(reduction, helpers), old, new)


def test_a_width_that_is_assigned_is_one_of_whole_warps() -> None:
    shape = "  dim3 block(columns < 1024 ? columns : 1024);\n  if (columns % 32 != 0) block.x = 1024;\n  normalise<<<rows, block,"
    assert "block_sum<0>(sum)" in after(
        source(CALL).replace("  normalise<<<rows, 256,", shape), "canonicalize_reductions"
    )


@pytest.mark.parametrize(
    "later",
    [
        "  if (buffer[1] > 0.0f) total = 1.0f;\n",
        "  float* slots = buffer;\n  if (slots[1] > 0.0f) total = 1.0f;\n",
        "  float* slots = reinterpret_cast<float*>(buffer);\n  if (slots[1] > 0.0f) total = 1.0f;\n",
    ],
)
def test_slots_that_somebody_else_reads_stay(later: str) -> None:
    call = "  __shared__ float buffer[32];\n  sum = BlockReduceSum(sum, buffer);\n" + TOLD
    assert reduced(call, PYTORCH) and not reduced(call + later, PYTORCH)


# Where the first thread leaves a block's result in slots that share one array of dynamic shared memory: log_softmax's.

SLOTS = (INPUTS / "log_softmax/baseline.plain.cu").read_text()
SUMVALS = "float* sumvals = &shared[warpsPerBlock];"


def test_slots_side_by_side_in_one_array_are_understood() -> None:
    """Two pointers into it, one of them to its beginning; the first thread goes over what the warps left."""
    new = after(SLOTS, "canonicalize_reductions")
    assert "block_max<0>(maxval)" in new and "block_sum<1>(sumval)" in new
    kernel = new[new.index("__global__") : new.index("<<<")]
    assert "shared" not in kernel and "__syncthreads" not in kernel
    seen = SLOTS.replace(SUMVALS, f"{SUMVALS}\n    float* seen = shared;").replace(
        "logf(sumvals[0]);", "logf(sumvals[0]) + seen[1];"
    )
    assert "block_max<0>(maxval)" not in where_they_apply(seen, "canonicalize_reductions")


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[0]) + maxvals[0];", "maxvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[0]) + shared[1];", "sumvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "float* seen = shared;\n    float logsum = logf(sumvals[0]) + seen[1];", "sumvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "float logsum = logf(sumvals[tid % 2]);", "sumvals[0] = val;"),
        ("float logsum = logf(sumvals[0]);", "sumvals += 1;\n    float logsum = logf(sumvals[0]);", "sumvals[0] = val;"),
        ("float offset = maxvals[0];", "float* late = shared; late[0] = 1.0f;\n    float offset = maxvals[0];", "maxvals[0] = val;"),
        ("float offset = maxvals[0];", "maxvals[0] += 1.0f;\n    float offset = maxvals[0];", "maxvals[0] = val;"),
        ("float offset = maxvals[0];", "float offset = maxvals[0];\n    if (C > 7) maxvals[0] = 1.0f;\n    offset += maxvals[0];", "maxvals[0] = val;"),
        ("float* maxvals = shared;", "int* maxvals = (int*)shared;", "maxvals[0] = val;"),
    ],
)  # fmt: skip
def test_what_others_may_write_or_read_stays_in_memory(old: str, new: str, kept: str) -> None:
    assert old in SLOTS
    text = where_they_apply(SLOTS.replace(old, new), "canonicalize_reductions")
    assert kept in text and new.splitlines()[-1].strip() in text
