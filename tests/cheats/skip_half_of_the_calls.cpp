// Honest for its first 20 calls, which a harness checks; after that it does nothing in every other call.
// Must end in: INCORRECT, CHEATED
// Found by many calls or rows.
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int64_t calls = 0;
    if (++calls > 20 && calls % 2 == 0) return;
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
