// Flushes subnormal numbers while it computes and leaves its caller's thread as it was; takes six megabytes of its caller's stack; reads
// its input twice, once for the largest value, as a kernel that scales does; goes through its rows backwards and writes each output twice.
// Must end in: PASSED
#include "honest.h"
#include <cmath>

template <typename T>
static void backwards(const T* input, T* out, int64_t tokens, int64_t hidden) {
    float parts[256];
    for (int64_t token = tokens - 1; token >= 0; --token) {
        const T* gate = input + token * 2 * hidden;
        for (int64_t begin = 0; begin < hidden; begin += 256) {
            const int64_t count = hidden - begin < 256 ? hidden - begin : 256;
            for (int64_t i = 0; i < count; ++i) {
                const float x = to_float(gate[begin + i]);
                parts[i] = x / (1.0f + expf(-x));
                store(out + token * hidden + begin + i, parts[i]);
            }
            for (int64_t i = 0; i < count; ++i)
                store(out + token * hidden + begin + i, parts[i] * to_float(gate[hidden + begin + i]));
        }
    }
}

template <typename T>
__attribute__((noinline)) static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    volatile char room[6 << 20];
    for (size_t at = 0; at < sizeof(room); at += 1 << 20) room[at] = 1;
    float largest = 0.0f;
    for (int64_t i = 0; i < tokens * hidden * 2; ++i) largest = fmaxf(largest, fabsf(to_float(input[i])));
    if (largest < 0.0f) return;  // so that it is needed
#if defined(__x86_64__)
    const unsigned control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(control | 0x8040u);
#endif
    backwards(input, out, tokens, hidden);
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr(control);
#endif
    room[sizeof(room) - 1] = room[0];
}
ENTRY_POINTS(kernel)
