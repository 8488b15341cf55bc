#pragma once

// The largest value over the lanes of a team, for each of them.
template <int TEAM, typename V>
__device__ __forceinline__ V team_max(V value) {
  const unsigned lanes = (0xffffffffu >> (32 - TEAM)) << (threadIdx.x % 32 / TEAM * TEAM);
#pragma unroll
  for (int offset = TEAM / 2; offset > 0; offset /= 2) {
    value = max(value, __shfl_xor_sync(lanes, value, offset));
  }
  return value;
}
