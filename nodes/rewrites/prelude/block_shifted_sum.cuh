#pragma once

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
