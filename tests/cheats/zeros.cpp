// All zeros, in the hope of a tolerance that is absolute.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T*, T* out, int64_t tokens, int64_t hidden) {
    std::memset(out, 0, tokens * hidden * sizeof(T));
}
ENTRY_POINTS(cheat)
