#pragma once

// N neighbouring elements that move together, in loads and stores of up to 16 bytes; they begin on a multiple of A elements.
template <typename T, int N, int A = N>
struct alignas(A * sizeof(T) < 16 ? A * sizeof(T) : 16) Lanes {
  T at[N];
};

template <int N, int A = N, typename T>
__device__ __forceinline__ Lanes<T, N, A> load_lanes(const T* from) {
  return *reinterpret_cast<const Lanes<T, N, A>*>(from);
}

template <typename T, int N, int A>
__device__ __forceinline__ void store_lanes(T* to, const Lanes<T, N, A>& lanes) {
  *reinterpret_cast<Lanes<T, N, A>*>(to) = lanes;
}
