#pragma once
#include <cstdint>

template <typename... P>
inline bool aligned_to_16_bytes(P... pointers) {
  return ((reinterpret_cast<uintptr_t>(pointers) % 16 == 0) && ...);
}
