#pragma once

// The largest value over the warp, for each of its lanes.
template <typename V>
__device__ __forceinline__ V warp_max(V value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(0xffffffffu, value, offset));
  return value;
}
