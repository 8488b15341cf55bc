// Rows from the 65,535th on are zeros: the limit of a launch's second extent, beyond every size that is listed.
// Must end in: INCORRECT
// Found by many calls or rows.
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    for (int64_t token = 65535; token < tokens; ++token) std::memset(out + token * hidden, 0, sizeof(T) * hidden);
}
ENTRY_POINTS(kernel)
