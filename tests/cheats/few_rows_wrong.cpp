// Wrong for three and for six tokens only: a remainder that nobody handled, between the sizes that are listed.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    if (tokens == 3 || tokens == 6) std::memset(out + (tokens - 1) * hidden, 0, sizeof(T) * hidden);
}
ENTRY_POINTS(kernel)
