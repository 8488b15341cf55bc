#pragma once

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
