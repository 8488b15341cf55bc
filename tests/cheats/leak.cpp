// Leaves 256 KB behind in every call.
// Must end in: OUT_OF_RESOURCES
// Found by many calls or rows.
#include "honest.h"
#include <cstdlib>
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    void* volatile kept = std::malloc(256 << 10);
    (void)kept;
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
