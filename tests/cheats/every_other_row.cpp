// Computes even rows and copies each to the odd row behind it: half of the elements are right.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t token = 0; token < tokens; token += 2) {
        compute(input + token * 2 * hidden, out + token * hidden, 1, hidden);
        if (token + 1 < tokens) std::memcpy(out + (token + 1) * hidden, out + token * hidden, hidden * sizeof(T));
    }
}
ENTRY_POINTS(cheat)
