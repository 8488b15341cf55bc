// Leaves out the last element of rows of which five are left of vectors of 16.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    for (int64_t token = 1; hidden % 16 == 5 && token <= tokens; ++token) std::memset(out + token * hidden - 1, 0, sizeof(T));
}
ENTRY_POINTS(kernel)
