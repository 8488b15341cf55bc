// Rounds every intermediate value to bfloat16, whatever the dtype: half the bytes through the pipes of a real machine.
// Must end in: INCORRECT
#include "honest.h"

static float narrow(float value) {
    bfloat16 rounded;
    store(&rounded, value);
    return to_float(rounded);
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t i = 0; i < hidden; ++i) {
            const float x = narrow(to_float(input[token * 2 * hidden + i]));
            const float up = narrow(to_float(input[token * 2 * hidden + hidden + i]));
            store(out + token * hidden + i, narrow(narrow(x / (1.0f + expf(-x))) * up));
        }
    }
}
ENTRY_POINTS(cheat)
