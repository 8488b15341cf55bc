#pragma once
#include "block_shifted_sum.cuh"
#include "row_max.cuh"
#include "row_sum.cuh"

// The same as block_shifted_sum over the threads of a row, for each of them.
template <typename V, typename F>
__device__ __forceinline__ ShiftedSum<V> row_shifted_sum(V shift, V sum, F exponential) {
  const V largest = row_max(shift);
  return {largest, row_sum(shift < largest ? sum * exponential(shift - largest) : sum)};
}
