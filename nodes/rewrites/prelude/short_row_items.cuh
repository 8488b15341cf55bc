#pragma once
#include <cstdint>

// How many steps of a short row one thread takes, the fewest with which the row fits a warp; 0 where it does not, and
// where there are fewer than SHORT_ROWS_FROM rows: more threads a row are done sooner then.
inline int short_row_items(int64_t rows, int64_t steps) {
  if (rows < SHORT_ROWS_FROM) return 0;
  for (int items = 1; items <= 8; items *= 2) {
    if (steps <= 32 * items) return items;
  }
  return 0;
}

// The threads of such a row: a power of two, so that rows do not straddle warps.
inline unsigned short_row_threads(int64_t steps, int items) {
  unsigned threads = 1;
  while (static_cast<int64_t>(threads) * items < steps) threads *= 2;
  return threads;
}
