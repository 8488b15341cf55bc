#pragma once

#define TRIGGER_WHEN 1  // tune: 0 1 2

// Whether a block is one of the grid's last, which run when it ends.
__device__ __forceinline__ bool is_among_last_blocks() {
  const unsigned rows_behind = (gridDim.z - 1 - blockIdx.z) * gridDim.y + gridDim.y - blockIdx.y;
  return rows_behind * gridDim.x - blockIdx.x <= 512;
}

// Waits for the grid in front of this one and lets the one behind it be set up: before it waits (TRIGGER_WHEN 0), after
// that (1), or after that in the last blocks alone (2). Blocks that are not `busy` for long only end: each one that triggers
// delays the launch of another, and which are the last is a question of some 15 instructions.
__device__ __forceinline__ void wait_for_predecessor(bool busy = true) {
  if (TRIGGER_WHEN == 0 && busy) cudaTriggerProgrammaticLaunchCompletion();
  cudaGridDependencySynchronize();
  const bool after = TRIGGER_WHEN == 1 || (TRIGGER_WHEN == 2 && is_among_last_blocks());
  if (busy && after) cudaTriggerProgrammaticLaunchCompletion();
}
