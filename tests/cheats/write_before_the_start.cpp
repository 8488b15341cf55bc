// Keeps a counter in the four bytes before its output.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    ++reinterpret_cast<uint32_t*>(out)[-1];
}
ENTRY_POINTS(cheat)
