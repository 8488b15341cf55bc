#pragma once
#include <cooperative_groups.h>
#include "block_max.cuh"

// The largest value of the cluster, for every thread. Each block leaves its part with every other one, so that nothing is read from
// elsewhere and blocks may end when they like; all of them must have begun. SITE as for sums over a block.
template <int SITE, typename V>
__device__ __forceinline__ V cluster_max(V value) {
  __shared__ V of_block[8];
  const auto cluster = cooperative_groups::this_cluster();
  value = block_max<SITE>(value);
  if (threadIdx.x < cluster.num_blocks()) cluster.map_shared_rank(of_block, threadIdx.x)[cluster.block_rank()] = value;
  cluster.sync();
  value = of_block[0];
#pragma unroll
  for (unsigned block = 1; block < 8; ++block) {
    if (block < cluster.num_blocks()) value = max(value, of_block[block]);
  }
  return value;
}
