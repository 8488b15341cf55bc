#pragma once
#include <cstdint>

#define NEIGHBOUR_ROWS 16  // tune: 4 8 16

// How many blocks take `count` neighbouring rows, NEIGHBOUR_ROWS each.
inline unsigned neighbour_groups(int64_t count) {
  return static_cast<unsigned>((count + NEIGHBOUR_ROWS - 1) / NEIGHBOUR_ROWS);
}

// Whether there are neighbours enough, and blocks with a thread for each of the `steps` of their rows are neither too
// small nor too large, nor too many.
inline bool neighbours_fit(int64_t steps, int64_t count) {
  const int64_t threads = NEIGHBOUR_ROWS * steps;
  return threads >= 32 && threads <= 1024 && count >= NEIGHBOUR_ROWS && count <= NEIGHBOUR_ROWS * int64_t{65535};
}
