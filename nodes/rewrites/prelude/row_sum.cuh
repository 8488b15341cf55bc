#pragma once

// The sum over the threads of a row, for each of them: blockDim.x lanes, a power of two up to 32.
template <typename V>
__device__ __forceinline__ V row_sum(V value) {
  const unsigned lanes = (0xffffffffu >> (32 - blockDim.x)) << (threadIdx.y * blockDim.x % 32);
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    if (offset < blockDim.x) value += __shfl_xor_sync(lanes, value, offset);
  }
  return value;
}
