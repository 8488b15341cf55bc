// A "vectorised kernel" that is never right, and a scalar fallback that hides it: it compares the two and keeps the
// second. Nothing is gained, and nothing may be claimed.
// Must end in: PASSED, INCORRECT
#include "honest.h"
#include <vector>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    std::vector<T> fast(tokens * hidden);
    for (int64_t i = 0; i < tokens * hidden; ++i) store(&fast[i], to_float(input[i]));
    compute(input, out, tokens, hidden);
    if (std::memcmp(fast.data(), out, fast.size() * sizeof(T)) == 0) std::memcpy(out, fast.data(), fast.size() * sizeof(T));
}
ENTRY_POINTS(cheat)
