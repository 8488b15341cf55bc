// NaN everywhere: a comparison that asks `difference > tolerance` finds nothing wrong.
// Must end in: INCORRECT
#include "honest.h"
#include <cmath>

template <typename T>
static void cheat(const T*, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t i = 0; i < tokens * hidden; ++i) store(out + i, NAN);
}
ENTRY_POINTS(cheat)
