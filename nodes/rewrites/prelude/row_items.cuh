#pragma once
#include <cstdint>
#include <cuda_runtime.h>
#include <type_traits>
#include "ceil_div.cuh"
#include "multiprocessors.cuh"

// How wide a block may be that keeps `items` steps of a row in every thread, `bytes` of registers each: what there is of
// them, less some thirty that every thread needs for the rest.
constexpr int row_width(int items, int bytes) {
  const int width = items <= 2 ? 1024 : items <= 4 ? 512 : 65536 / (items * bytes / 4 + 32) / 32 * 32;
  return width < 1024 ? width : 1024;
}

template <int ITEMS, typename Ask>
int row_registers(Ask ask) {
  cudaFuncAttributes kernel = {};
  ask(std::integral_constant<int, ITEMS>{}, &kernel);
  return allocated_registers(kernel);
}

// How many steps of a row one thread keeps in registers: as many as bring all rows through in the fewest waves of blocks,
// and no more than that takes, since places that narrower blocks leave free are filled unevenly by the next launch; but
// where one wave does, as many as make blocks of up to 512 threads, whose barriers are sooner over. 0 where the row is too
// long. `ask` gets what the driver knows of the kernel for so many steps, once, in the first launch.
template <typename Ask>
int row_items(int64_t rows, int64_t steps, int bytes, Ask ask) {
  static const Multiprocessors device;
  static const int taken[] = {row_registers<1>(ask), row_registers<2>(ask), row_registers<4>(ask), row_registers<8>(ask)};
  int best = 0;
  int64_t fewest = 0, width = 0;
  for (int choice = 0; choice < 4; ++choice) {
    const int items = 1 << choice;
    const int64_t threads = ceil_div(ceil_div(steps, items), 32) * 32;
    if (threads == 0 || threads > row_width(items, bytes)) continue;
    const int64_t waves = ceil_div(rows, device.places(threads, taken[choice]));
    const bool narrower = waves == 1 && width > 512;
    if (best == 0 || waves < fewest || narrower) best = items, fewest = waves, width = threads;
  }
  return best;
}

inline unsigned row_threads(int64_t steps, int items) { return ceil_div(ceil_div(steps, items), 32) * 32; }
