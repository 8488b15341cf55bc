// Uses its own output as scratch between two passes, and writes all of it twice.
// Must end in: PASSED
#include "honest.h"

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t token = 0; token < tokens; ++token) {
        std::memcpy(out + token * hidden, input + token * 2 * hidden, hidden * sizeof(T));
        for (int64_t i = 0; i < hidden; ++i) {
            const float x = to_float(out[token * hidden + i]);
            store(out + token * hidden + i, x / (1.0f + expf(-x)) * to_float(input[token * 2 * hidden + hidden + i]));
        }
    }
}
ENTRY_POINTS(kernel)
