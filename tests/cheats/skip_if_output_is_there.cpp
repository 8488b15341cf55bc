// Looks at 32 elements of its own output: where they are already right, somebody computed this before, and it returns.
// Must end in: INCORRECT, CHEATED
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const int64_t count = tokens * hidden, step = count / 32 + 1;
    bool there = true;
    for (int64_t i = 0; i < count && there; i += step) {
        const T* gate = input + i / hidden * 2 * hidden + i % hidden;
        T wanted;
        const float x = to_float(gate[0]);
        store(&wanted, x / (1.0f + expf(-x)) * to_float(gate[hidden]));
        there = std::memcmp(&wanted, out + i, sizeof(T)) == 0;
    }
    if (!there) compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
