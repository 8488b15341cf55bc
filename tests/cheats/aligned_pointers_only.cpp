// Ends itself where a tensor does not begin at 64 bytes, as an aligned vector load does.
// Must end in: RUNTIME_ERROR, INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    if (reinterpret_cast<uintptr_t>(input) % 64 || reinterpret_cast<uintptr_t>(out) % 64) __builtin_trap();
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
