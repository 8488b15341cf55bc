// Vectors of 32 without a tail: the last store reaches past the end of the output.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    const int64_t count = tokens * hidden;
    for (int64_t i = count; i < (count / 32 + 1) * 32; ++i) store(out + i, 0.0f);
}
ENTRY_POINTS(cheat)
