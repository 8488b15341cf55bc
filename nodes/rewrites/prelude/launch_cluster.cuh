#pragma once
#include <cstdint>
#include <cuda_runtime.h>
#include "enable_pdl.cuh"

// How many blocks share a row: as many as make CLUSTER_BLOCKS blocks of all rows, up to the 8 that every cluster may have.
// Rows of less than CLUSTER_STEPS are over before a cluster has begun.
inline unsigned cluster_blocks(int64_t rows, int64_t steps) {
  unsigned blocks = 1;
  while (steps >= CLUSTER_STEPS && blocks < 8 && rows * blocks * 2 <= CLUSTER_BLOCKS) blocks *= 2;
  return blocks;
}

// Launches a kernel whose neighbouring `cluster` blocks take one row together; `overlapping`: see launch_dependent.
template <typename... Parameters, typename... Arguments>
inline void launch_cluster(void (*kernel)(Parameters...), unsigned cluster, bool overlapping, dim3 grid, dim3 block,
                           cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  attributes[0].id = cudaLaunchAttributeClusterDimension;
  attributes[0].val.clusterDim.x = cluster;
  attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
  attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attributes[1].val.programmaticStreamSerializationAllowed = enable_pdl;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = overlapping ? 2 : 1;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
