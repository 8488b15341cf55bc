#pragma once

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
