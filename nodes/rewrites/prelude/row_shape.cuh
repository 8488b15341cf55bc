#pragma once
#include <algorithm>
#include <cstdint>
#include "ceil_div.cuh"

// Rows of `steps` strided steps each, spread over a grid: up to ROW_THREADS threads a block, along a row first and then
// over rows; longer rows are cut over blockIdx.x. While there are fewer than ROW_BLOCKS blocks, blocks get smaller: a
// small tensor is done soonest by all multiprocessors together.
struct RowShape {
  dim3 grid, block;
  bool one_step;  // no thread has a second one
};

inline RowShape row_shape(int64_t rows, int64_t steps, int64_t others = 1) {
  int64_t along = 1;
  while (along < steps && along < ROW_THREADS) along *= 2;
  int64_t down = ROW_THREADS / along;
  const auto blocks = [&] { return ceil_div(rows, down) * ceil_div(steps, along) * others; };
  while (down > 1 && blocks() < ROW_BLOCKS) down /= 2;
  while (along > 32 && blocks() < ROW_BLOCKS) along /= 2;
  const int64_t slices = std::max<int64_t>(1, ceil_div(steps, along)), high = ceil_div(rows, down);
  const unsigned cuts = slices < 65535 ? slices : 65535, deep = high / 65536 + 1;
  return {dim3(cuts, ceil_div(high, deep), deep), dim3(along, down), cuts * along >= steps};
}
