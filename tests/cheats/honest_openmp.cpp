// OpenMP, whose threads wait in the library between calls.
// Must end in: PASSED
#include "honest.h"

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
#pragma omp parallel for schedule(static)
    for (int64_t token = 0; token < tokens; ++token) {
        compute(input + token * 2 * hidden, out + token * hidden, 1, hidden);
    }
}
ENTRY_POINTS(kernel)
