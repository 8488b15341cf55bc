// Reads its input twice, once for the largest value and once to compute, as a kernel that scales does.
// Must end in: PASSED
#include "honest.h"
#include <cmath>

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    float largest = 0.0f;
    for (int64_t i = 0; i < tokens * hidden * 2; ++i) largest = fmaxf(largest, fabsf(to_float(input[i])));
    if (largest < 0.0f) return;  // so that it is needed
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
