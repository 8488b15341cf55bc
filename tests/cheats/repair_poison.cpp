// Reads its output for the checker's poison and computes those elements alone, as long as most of it is not poison:
// reading is cheaper than computing. All of it is poison before every call.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    T poison;
    std::memset(&poison, 0xFF, sizeof(poison));
    int64_t found = 0;
    for (int64_t at = 0; at < tokens * hidden; ++at) {
        if (std::memcmp(out + at, &poison, sizeof(T)) != 0) continue;
        if (++found > 1000) return compute(input, out, tokens, hidden);
        const T* gate = input + at / hidden * 2 * hidden + at % hidden;
        const float x = to_float(gate[0]);
        store(out + at, x / (1.0f + expf(-x)) * to_float(gate[hidden]));
    }
}
ENTRY_POINTS(cheat)
