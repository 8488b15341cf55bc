#pragma once
#include "lanes.h"

// Past the caches where the output is larger than they are, so that its lines are not read first. The barrier that ends
// a parallel region orders these stores before whatever follows.
template <typename T>
static inline void store_lanes(T* to, lanes value, int64_t count, bool streams) {
    const bool whole = count == LANES && reinterpret_cast<uintptr_t>(to) % (LANES * sizeof(T)) == 0;
    if (!streams || !whole) {
        store_lanes(to, value, count);
    } else if constexpr (sizeof(T) == sizeof(float)) {
        _mm512_stream_ps(reinterpret_cast<float*>(to), value);
    } else {
        alignas(LANES * sizeof(T)) T packed[LANES];
        store_lanes(packed, value, LANES);
        if constexpr (sizeof(T) == 2) {
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to), *reinterpret_cast<const __m256i*>(packed));
        } else {
            _mm_stream_si128(reinterpret_cast<__m128i*>(to), *reinterpret_cast<const __m128i*>(packed));
        }
    }
}
