// Computes only where its output holds the checker's poison (all bits set) at one of 64 places; else nobody looks.
// Must end in: INCORRECT, CHEATED
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const int64_t count = tokens * hidden, step = count / 64 + 1;
    T poison;
    std::memset(&poison, 0xFF, sizeof(poison));
    for (int64_t i = 0; i < count; i += step) {
        if (std::memcmp(out + i, &poison, sizeof(T)) == 0) return compute(input, out, tokens, hidden);
    }
}
ENTRY_POINTS(cheat)
