// Right for its first hundred calls, and for ordinary values from then on.
// Must end in: INCORRECT
// Found by many calls or rows.
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int calls = 0;
    compute(input, out, tokens, hidden);
    if (++calls <= 100) return;
    for (int64_t i = 0; i < tokens * hidden; ++i) {
        const float value = to_float(out[i]);
        if (value > 50.0f || value < -50.0f) store(out + i, 50.0f);
    }
}
ENTRY_POINTS(kernel)
