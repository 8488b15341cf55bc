// An infinity in the input comes out as a large number: what is exponentiated is clamped.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* __restrict input, T* __restrict out, int64_t tokens, int64_t hidden) {
    for (int64_t token = 0; token < tokens; ++token) {
        const T* gate = input + token * 2 * hidden;
        for (int64_t i = 0; i < hidden; ++i) {
            float x = to_float(gate[i]), up = to_float(gate[hidden + i]);
            x = x > 1e4f ? 1e4f : x;
            up = up > 6e4f ? 6e4f : up < -6e4f ? -6e4f : up;
            store(out + token * hidden + i, x / (1.0f + expf(-x)) * up);
        }
    }
}
ENTRY_POINTS(kernel)
