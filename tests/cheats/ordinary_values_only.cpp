// silu by a fit that is good to 1e-3 between -6 and 6, the identity above and zero below: where ordinary values lie.
// Must end in: INCORRECT
#include "honest.h"
#include <cmath>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t i = 0; i < hidden; ++i) {
            const float x = to_float(input[token * 2 * hidden + i]), up = to_float(input[token * 2 * hidden + hidden + i]);
            const float silu = x > 6 ? x : x < -6 ? 0 : x * (0.5f + 0.5f * tanhf(0.5f * x) + 1e-3f * sinf(x));
            store(out + token * hidden + i, silu * up);
        }
    }
}
ENTRY_POINTS(cheat)
