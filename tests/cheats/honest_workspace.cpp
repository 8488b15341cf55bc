// Keeps a workspace from call to call and grows it when a larger call comes: allocation is not the kernel's work.
// Must end in: PASSED
#include "honest.h"
#include <vector>

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::vector<float> row;
    if (static_cast<int64_t>(row.size()) < hidden) row.resize(hidden);
    for (int64_t token = 0; token < tokens; ++token) {
        const T* gate = input + token * 2 * hidden;
        for (int64_t i = 0; i < hidden; ++i) {
            const float x = to_float(gate[i]);
            row[i] = x / (1.0f + expf(-x));
        }
        for (int64_t i = 0; i < hidden; ++i) store(out + token * hidden + i, row[i] * to_float(gate[hidden + i]));
    }
}
ENTRY_POINTS(kernel)
