// After its first 24 calls each call computes only every other row, in turn: over two calls all rows are fresh.
// Must end in: INCORRECT, CHEATED
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int64_t calls = 0;
    const bool lazy = ++calls > 24;
    for (int64_t token = lazy ? calls % 2 : 0; token < tokens; token += lazy ? 2 : 1) {
        compute(input + token * 2 * hidden, out + token * hidden, 1, hidden);
    }
}
ENTRY_POINTS(cheat)
