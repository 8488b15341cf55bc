// OpenMP, each thread with a row of its own in thread_local memory that it keeps from call to call.
// Must end in: PASSED
#include "honest.h"

#include <vector>

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
#pragma omp parallel for schedule(dynamic, 4)
    for (int64_t token = 0; token < tokens; ++token) {
        thread_local std::vector<T> row;
        if (static_cast<int64_t>(row.size()) < hidden) row.resize(hidden);
        compute(input + token * 2 * hidden, row.data(), 1, hidden);
        std::memcpy(out + token * hidden, row.data(), hidden * sizeof(T));
    }
}
ENTRY_POINTS(kernel)
