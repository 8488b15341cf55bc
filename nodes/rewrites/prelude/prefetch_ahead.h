#pragma once
#include "lanes.h"

// Long arithmetic leaves little room to run ahead, so the lines of four steps on are asked for. Past the end that is
// harmless: a prefetch never faults.
template <typename T>
static inline void prefetch_ahead(const T* from) {
    __builtin_prefetch(from + 4 * LANES);
}
