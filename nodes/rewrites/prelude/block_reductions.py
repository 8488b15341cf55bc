"""Reductions over a block of whole warps."""

from __future__ import annotations

from nodes.rewrites.syntax.source import Source

SUM = """\
// The sum over the block, for every thread. Blocks are whole warps. SITE tells apart calls that no barrier separates.
template <int SITE, typename V>
__device__ __forceinline__ V block_sum(V value) {
  __shared__ V of_warp[32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? of_warp[threadIdx.x % 32] : V(0);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  return value;
}
"""


EXTREME = """\
// The largest value of the block, for every thread. Blocks are whole warps. SITE as for sums.
template <int SITE, typename V>
__device__ __forceinline__ V block_max(V value) {
  __shared__ V of_warp[32];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  value = of_warp[threadIdx.x % 32 < blockDim.x / 32 ? threadIdx.x % 32 : 0];
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
"""


SHIFTED_SUM = """\
// The largest shift of several threads, and their sums of exponentials below shifts of their own brought below that one.
template <typename V>
struct ShiftedSum {
  V shift, sum;
};

// Over the warp, for every thread; `exponential` takes how far a shift lies below the largest.
template <typename V, typename F>
__device__ __forceinline__ ShiftedSum<V> warp_shifted_sum(V shift, V sum, F exponential) {
  V largest = shift;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) largest = max(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
  if (shift < largest) sum *= exponential(shift - largest);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, offset);
  return {largest, sum};
}

// Over the block, for every thread. Blocks are whole warps. SITE as for sums.
template <int SITE, typename V, typename F>
__device__ __forceinline__ ShiftedSum<V> block_shifted_sum(V shift, V sum, F exponential) {
  __shared__ ShiftedSum<V> of_warp[32];
  const ShiftedSum<V> own = warp_shifted_sum(shift, sum, exponential);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = own;
  __syncthreads();
  const bool there = threadIdx.x % 32 < blockDim.x / 32;
  const ShiftedSum<V> part = of_warp[there ? threadIdx.x % 32 : 0];
  return warp_shifted_sum(part.shift, there ? part.sum : V(0), exponential);
}
"""


HELPERS = {
    "sum": SUM, "max": EXTREME, "min": EXTREME.replace("max", "min").replace("largest", "smallest"),
    "shifted_sum": SHIFTED_SUM,
}  # fmt: skip


def reduces(source: Source) -> bool:
    """Whether warp_shuffle_reduction's reductions are in the source at all: without them there is nothing to look for."""
    return any(helper in source.text for helper in HELPERS.values())
