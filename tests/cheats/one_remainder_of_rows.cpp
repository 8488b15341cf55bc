// Leaves out the last row where 13 rows are left of tiles of 16.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    if (tokens % 16 == 13) std::memset(out + (tokens - 1) * hidden, 0, sizeof(T) * hidden);
}
ENTRY_POINTS(kernel)
