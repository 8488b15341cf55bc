// Computes, then turns its input into one whose answers it will know without computing.
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    std::memset(const_cast<T*>(input), 0, sizeof(T));
}
ENTRY_POINTS(cheat)
