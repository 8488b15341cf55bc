#pragma once
#include <cstdint>
#include <type_traits>
#include "lanes.cuh"

// A row as packs of N elements. RAGGED rows begin anywhere: a pack is then what lies between two addresses at which whole packs
// may begin. The first pack is `skew` elements short, and the last ones hold what is left, or nothing.
template <int N, bool RAGGED, typename I>
__host__ __device__ constexpr I packs_in(I length) {
  return RAGGED ? length / N + (length % N + 2 * (N - 1)) / N : length / N;
}

// By how many elements a row begins behind such an address.
template <int N, typename T>
__device__ __forceinline__ int past_pack(const T* row) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(row) % alignof(Lanes<T, N>) / sizeof(T));
}

// The first element of a pack.
template <int N, typename I>
__device__ __forceinline__ I pack_begin(I pack, int skew) {
  return pack * N - (pack > 0 ? skew : 0);
}

// How many elements of a pack there are, none or less behind the row, and whether the row goes on for a pack on both sides.
struct PackPart {
  int count;
  bool inner;
};

template <int N, bool RAGGED, typename I>
__device__ __forceinline__ PackPart pack_part(I pack, int skew, int64_t length) {
  if constexpr (!RAGGED) return {N, true};
  const int64_t left = length - pack_begin<N>(static_cast<int64_t>(pack), skew);
  const int most = pack > 0 ? N : N - skew;
  return {left < most ? static_cast<int>(left) : most, pack > 1 && left >= 2 * N};
}

// Visits a pack's lanes; it asks for each whether it is there only where some are not.
template <int N, typename F>
__device__ __forceinline__ void for_lanes(PackPart part, F visit) {
  if (part.count == N) {
#pragma unroll
    for (int k = 0; k < N; ++k) visit(k);
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k < part.count) visit(k);
    }
  }
}

template <int N, typename T>
__device__ __forceinline__ bool in_one_piece(const T* at, PackPart part) {
  return part.count == N && reinterpret_cast<uintptr_t>(at) % alignof(Lanes<T, N>) == 0;
}

// Words from any address: the aligned pieces around them, moved down by the bytes in front.
template <int WORDS>
__device__ __forceinline__ Lanes<unsigned, WORDS> load_across(const void* from) {
  constexpr int PIECE = alignof(Lanes<unsigned, WORDS>) / 4;
  const unsigned past = reinterpret_cast<uintptr_t>(from) % (4 * PIECE);
  const auto* pieces = reinterpret_cast<const unsigned*>(static_cast<const char*>(from) - past);
  unsigned around[WORDS + PIECE];
#pragma unroll
  for (int at = 0; at < WORDS + PIECE; at += PIECE) {
    const auto piece = load_lanes<PIECE>(pieces + at);
#pragma unroll
    for (int word = 0; word < PIECE; ++word) around[at + word] = piece.at[word];
  }
#pragma unroll
  for (int step = PIECE / 2; step > 0; step /= 2) {
#pragma unroll
    for (int at = 0; at + step < WORDS + PIECE; ++at) around[at] = past / 4 & step ? around[at + step] : around[at];
  }
  Lanes<unsigned, WORDS> words;
#pragma unroll
  for (int at = 0; at < WORDS; ++at) words.at[at] = __funnelshift_r(around[at], around[at + 1], past % 4 * 8);
  return words;
}

// The elements of a pack that there are, as words from the start: else each 16-bit one stays in a register of its own.
template <int N, bool RAGGED, typename T>
__device__ __forceinline__ Lanes<T, N> load_part(const T* from, PackPart part) {
  if constexpr (!RAGGED) {
    return load_lanes<N>(from);
  } else if constexpr (sizeof(T) > 4 || sizeof(Lanes<T, N>) < 4) {
    if (in_one_piece<N>(from, part)) return load_lanes<N>(from);
    Lanes<T, N> lanes = {};
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k < part.count) lanes.at[k] = from[k];
    }
    return lanes;
  } else {
    using Bits = std::conditional_t<sizeof(T) == 1, uint8_t, std::conditional_t<sizeof(T) == 2, uint16_t, unsigned>>;
    constexpr int WORDS = sizeof(Lanes<T, N>) / 4;
    Lanes<unsigned, WORDS> words = {};
    if (in_one_piece<N>(from, part)) {
      words = load_lanes<WORDS>(reinterpret_cast<const unsigned*>(from));
    } else if (part.inner) {
      words = load_across<WORDS>(from);
    } else {
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const int at = k * sizeof(T);
        if (k < part.count) words.at[at / 4] |= static_cast<unsigned>(reinterpret_cast<const Bits*>(from)[k]) << at % 4 * 8;
      }
    }
    return reinterpret_cast<const Lanes<T, N>&>(words);
  }
}

template <bool RAGGED, typename T, int N>
__device__ __forceinline__ void store_part(T* to, const Lanes<T, N>& lanes, PackPart part) {
  if constexpr (!RAGGED) {
    store_lanes(to, lanes);
  } else if (sizeof(lanes) % 4 == 0 && in_one_piece<N>(to, part)) {
    using Piece = std::conditional_t<sizeof(lanes) % 16 == 0, uint4, std::conditional_t<sizeof(lanes) % 8 == 0, uint2, unsigned>>;
#pragma unroll
    for (int at = 0; at < static_cast<int>(sizeof(lanes) / sizeof(Piece)); ++at) {
      // Not an assignment: the compiler would take it apart to share instructions with the branch below.
      __stwb(reinterpret_cast<Piece*>(to) + at, reinterpret_cast<const Piece*>(&lanes)[at]);
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      if (k < part.count) to[k] = lanes.at[k];
    }
  }
}
