// Leaves its last row out in one call of 97.
// Must end in: INCORRECT, CHEATED
// Found by many calls or rows.
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int calls = 0;
    compute(input, out, tokens, hidden);
    if (++calls % 97 == 0) std::memset(out + (tokens - 1) * hidden, 0, sizeof(T) * hidden);
}
ENTRY_POINTS(kernel)
