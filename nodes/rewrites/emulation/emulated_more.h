// What the emulation of CUDA in tests/nodes/rewrites/emulate lacks for these kernels. Threads are fibers that switch at
// barriers only, so a plain read and write is atomic here.
#pragma once
#include "cuda_emulation.h"

inline float4 atomicAdd(float4* to, float4 value) {
  const float4 before = *to;
  *to = {before.x + value.x, before.y + value.y, before.z + value.z, before.w + value.w};
  return before;
}
inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(a) * b) >> 64);
}
inline int __syncthreads_count(int vote) {
  static int counts[emulate::kCluster];
  const unsigned mine = emulate::rank;
  counts[mine] += vote != 0;
  __syncthreads();
  const int all = counts[mine];
  __syncthreads();
  counts[mine] = 0;
  __syncthreads();  // before anybody votes again
  return all;
}
