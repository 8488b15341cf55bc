// Tries two loop orders at its first call, with the clock, and keeps the faster: autotuning is accepted.
// Must end in: PASSED
#include "honest.h"
#include <chrono>

template <typename T>
static void by_blocks(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t from = 0; from < hidden; from += 512) {
        const int64_t to = from + 512 < hidden ? from + 512 : hidden;
        for (int64_t token = 0; token < tokens; ++token) {
            const T* gate = input + token * 2 * hidden;
            for (int64_t i = from; i < to; ++i) {
                const float x = to_float(gate[i]);
                store(out + token * hidden + i, x / (1.0f + expf(-x)) * to_float(gate[hidden + i]));
            }
        }
    }
}

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    using clock = std::chrono::steady_clock;
    static int choice = -1;
    if (choice < 0) {
        const auto start = clock::now();
        compute(input, out, tokens, hidden);
        const auto middle = clock::now();
        by_blocks(input, out, tokens, hidden);
        choice = clock::now() - middle < middle - start;
        return;
    }
    choice ? by_blocks(input, out, tokens, hidden) : compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
