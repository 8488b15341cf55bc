// A counter of sixteen bits goes round: right for 65,535 calls, zeros from then on.
// Must end in: INCORRECT, CHEATED
// Found by many calls or rows, a long row of them.
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int calls = 0;
    compute(input, out, tokens, hidden);
    if (++calls > 65535) std::memset(out, 0, sizeof(T) * tokens * hidden);
}
ENTRY_POINTS(kernel)
