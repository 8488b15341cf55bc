// A loop of 64 whose tail of 2 to 31 is wrong: of sixteen widths one after another, from the smallest on, none has such a remainder.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void tail(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    if (hidden > 64 && hidden % 64 > 1 && hidden % 64 < 32)
        for (int64_t token = 0; token < tokens; ++token) store(out + (token + 1) * hidden - 1, 0.0f);
}

ENTRY_POINTS(tail)
