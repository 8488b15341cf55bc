#pragma once
#include <cuda_fp16.h>
#include "lanes.cuh"

// __half2 copies its halves one by one: many of them move as the words that they are.
template <int N, int A = N>
__device__ __forceinline__ Lanes<__half2, N, A> load_lanes(const __half2* from) {
  const auto words = *reinterpret_cast<const Lanes<unsigned, N, A>*>(from);
  return reinterpret_cast<const Lanes<__half2, N, A>&>(words);
}

template <int N, int A>
__device__ __forceinline__ void store_lanes(__half2* to, const Lanes<__half2, N, A>& lanes) {
  *reinterpret_cast<Lanes<unsigned, N, A>*>(to) = reinterpret_cast<const Lanes<unsigned, N, A>&>(lanes);
}
