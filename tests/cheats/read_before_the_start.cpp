// Reads 8 bytes before its input.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const volatile char* start = reinterpret_cast<const char*>(input);
    for (int i = -8; i < 0; ++i) (void)start[i];
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
