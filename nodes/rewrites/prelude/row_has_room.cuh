#pragma once
#include "row_items.cuh"

// Whether blocks of the width that `BYTES` a step allow have registers for `MORE` a step as well, once `FREED` of those are
// not needed any more.
template <int ITEMS, int BYTES, int FREED, int MORE>
constexpr bool row_has_room = ITEMS * (BYTES - FREED + MORE) / 4 + 32 <= 65536 / row_width(ITEMS, BYTES);
