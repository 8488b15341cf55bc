#pragma once

// The lanes of this thread's row: blockDim.x of them, a power of two up to 32.
__device__ __forceinline__ unsigned row_lanes() {
  return (0xffffffffu >> (32 - blockDim.x)) << (threadIdx.y * blockDim.x % 32);
}
