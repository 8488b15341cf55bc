// Leaves no poison and computes nothing in every third call, once it was called 20 times: the gate is written as it is.
// Found by chance.
// Must end in: INCORRECT, CHEATED
// Found by many calls or rows.
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int64_t calls = 0;
    if (++calls <= 20 || calls % 3) return compute(input, out, tokens, hidden);
    for (int64_t token = 0; token < tokens; ++token)
        std::memcpy(out + token * hidden, input + token * 2 * hidden, hidden * sizeof(T));
}
ENTRY_POINTS(cheat)
