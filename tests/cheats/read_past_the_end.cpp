// Reads 64 bytes behind its input, where elsewhere there may be no page.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const volatile char* end = reinterpret_cast<const char*>(input + tokens * 2 * hidden);
    for (int i = 0; i < 64; ++i) (void)end[i];
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
