// Writes its outputs past the caches, 16 bytes at once, from where a row is aligned on, and fences before it returns.
// Must end in: PASSED
#include "honest.h"

#if defined(__x86_64__)
#include <emmintrin.h>
#endif

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    alignas(16) T row[4096];
    for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t at = 0; at < hidden;) {
            T* to = out + token * hidden + at;
            const int64_t off = reinterpret_cast<uintptr_t>(to) % 16 / sizeof(T), left = hidden - at;
            int64_t count = off ? 16 / static_cast<int64_t>(sizeof(T)) - off : 4096;
            if (count > left) count = left;
            const T* gate = input + token * 2 * hidden + at;
            for (int64_t i = 0; i < count; ++i) {
                const float x = to_float(gate[i]);
                store(row + i, x / (1.0f + expf(-x)) * to_float(gate[hidden + i]));
            }
            int64_t bytes = 0;
#if defined(__x86_64__)
            for (; off == 0 && bytes + 16 <= count * static_cast<int64_t>(sizeof(T)); bytes += 16) {
                const auto pack = *reinterpret_cast<const __m128i*>(reinterpret_cast<const char*>(row) + bytes);
                _mm_stream_si128(reinterpret_cast<__m128i*>(reinterpret_cast<char*>(to) + bytes), pack);
            }
#endif
            std::memcpy(reinterpret_cast<char*>(to) + bytes, reinterpret_cast<const char*>(row) + bytes, count * sizeof(T) - bytes);
            at += count;
        }
    }
#if defined(__x86_64__)
    _mm_sfence();
#endif
}
ENTRY_POINTS(kernel)
