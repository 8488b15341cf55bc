#pragma once
#include "row_lanes.cuh"

// The sum over the threads of a row, for each of them.
template <typename V>
__device__ __forceinline__ V row_sum(V value) {
  const unsigned lanes = row_lanes();
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    if (offset < blockDim.x) value += __shfl_xor_sync(lanes, value, offset);
  }
  return value;
}
