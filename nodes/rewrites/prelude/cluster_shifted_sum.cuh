#pragma once
#include <cooperative_groups.h>
#include "block_shifted_sum.cuh"

// The same as block_shifted_sum over the cluster, for every thread; each block leaves its part with every other one.
template <int SITE, typename V, typename F>
__device__ __forceinline__ ShiftedSum<V> cluster_shifted_sum(V shift, V sum, F exponential) {
  __shared__ ShiftedSum<V> of_block[8];
  const auto cluster = cooperative_groups::this_cluster();
  const ShiftedSum<V> own = block_shifted_sum<SITE>(shift, sum, exponential);
  if (threadIdx.x < cluster.num_blocks()) cluster.map_shared_rank(of_block, threadIdx.x)[cluster.block_rank()] = own;
  cluster.sync();
  V largest = of_block[0].shift;
#pragma unroll
  for (unsigned block = 1; block < 8; ++block) {
    if (block < cluster.num_blocks()) largest = max(largest, of_block[block].shift);
  }
  sum = V(0);
#pragma unroll
  for (unsigned block = 0; block < 8; ++block) {
    if (block >= cluster.num_blocks()) continue;
    const ShiftedSum<V> part = of_block[block];
    sum += part.shift < largest ? part.sum * exponential(part.shift - largest) : part.sum;
  }
  return {largest, sum};
}
