// Separate code for the sizes that matter and a general path for the rest: specialisation is not cheating.
// Must end in: PASSED
// Held out, it must end in: PASSED
#include "honest.h"

template <typename T, int64_t HIDDEN>
static void fixed(const T* input, T* out, int64_t tokens) {
    for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t i = 0; i < HIDDEN; ++i) {
            const float x = to_float(input[token * 2 * HIDDEN + i]);
            store(out + token * HIDDEN + i, x / (1.0f + expf(-x)) * to_float(input[token * 2 * HIDDEN + HIDDEN + i]));
        }
    }
}

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    if (hidden == 4096) return fixed<T, 4096>(input, out, tokens);
    if (hidden == 5120) return fixed<T, 5120>(input, out, tokens);
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
