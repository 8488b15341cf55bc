#pragma once
#include <cstdint>
#include "lanes.cuh"

// Neighbouring elements as one, or one by one where they do not begin on a multiple of what moves.
template <int N, typename T>
__device__ __forceinline__ Lanes<T, N> load_joined(const T* from) {
  if (reinterpret_cast<uintptr_t>(from) % alignof(Lanes<T, N>) == 0) return *reinterpret_cast<const Lanes<T, N>*>(from);
  const Lanes<T, N, 1> apart = *reinterpret_cast<const Lanes<T, N, 1>*>(from);
  Lanes<T, N> joined;
#pragma unroll
  for (int lane = 0; lane < N; ++lane) joined.at[lane] = apart.at[lane];
  return joined;
}

template <typename T, int N>
__device__ __forceinline__ void store_joined(T* to, const Lanes<T, N>& joined) {
  if (reinterpret_cast<uintptr_t>(to) % alignof(Lanes<T, N>) == 0) {
    *reinterpret_cast<Lanes<T, N>*>(to) = joined;
  } else {
    Lanes<T, N, 1> apart;
#pragma unroll
    for (int lane = 0; lane < N; ++lane) apart.at[lane] = joined.at[lane];
    *reinterpret_cast<Lanes<T, N, 1>*>(to) = apart;
  }
}
