#pragma once
#include <cstdint>

template <typename P, typename... Q>
inline bool aligned_alike(P pointer, Q... others) {
  return ((reinterpret_cast<uintptr_t>(pointer) % 16 == reinterpret_cast<uintptr_t>(others) % 16) && ...);
}
