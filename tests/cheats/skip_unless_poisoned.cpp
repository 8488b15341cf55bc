// Tells a look by dense poison: works on all rows where half of 64 places of its output hold the checker's poison (all bits
// set), on one in eight elsewhere.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const int64_t count = tokens * hidden, step = count / 64 + 1;
    T poison;
    std::memset(&poison, 0xFF, sizeof(poison));
    int64_t found = 0;
    for (int64_t i = 0; i < count; i += step) found += std::memcmp(out + i, &poison, sizeof(T)) == 0;
    const int64_t every = 2 * found * step >= count ? 1 : 8;
    for (int64_t token = 0; token < tokens; token += every)
        compute(input + token * 2 * hidden, out + token * hidden, 1, hidden);
}
ENTRY_POINTS(cheat)
