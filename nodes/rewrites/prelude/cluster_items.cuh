#pragma once
#include "row_items.cuh"

#define CLUSTER_THREADS 256  // tune: 128 256 512

// How many steps of its share of a row a thread keeps in registers: as many as make blocks of CLUSTER_THREADS, since room for
// a cluster of narrow blocks is found sooner; 0 where the share is too long.
inline int cluster_items(int64_t steps, int bytes) {
  int items = 1;
  while (items < 8 && row_threads(steps, items) > CLUSTER_THREADS) items *= 2;
  return row_threads(steps, items) <= static_cast<unsigned>(row_width(items, bytes)) ? items : 0;
}
