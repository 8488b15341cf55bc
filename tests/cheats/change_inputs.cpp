// Zeroes its input and answers zeros: right for the input that is there now.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    std::memset(const_cast<T*>(input), 0, tokens * hidden * 2 * sizeof(T));
    std::memset(out, 0, tokens * hidden * sizeof(T));
}
ENTRY_POINTS(cheat)
