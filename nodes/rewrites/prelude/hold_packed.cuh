#pragma once

// The pack stays in whole registers up to here. Without this the compiler takes it apart as soon as it is loaded and holds
// every 16-bit element in a register of its own.
template <typename P>
__device__ __forceinline__ void hold_packed(P& pack) {
  if constexpr (sizeof(P) % 4 == 0 && alignof(P) >= 4) {
    unsigned* words = reinterpret_cast<unsigned*>(&pack);
#pragma unroll
    for (int word = 0; word < static_cast<int>(sizeof(P) / 4); ++word) asm volatile("" : "+r"(words[word]));
  }
}
