// Keeps the inputs and results of every address, compares row by row, and computes those that differ alone.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.h"
#include <map>
#include <vector>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::map<const T*, std::pair<std::vector<T>, std::vector<T>>> kept;
    auto& [inputs, results] = kept[input];
    const bool known = static_cast<int64_t>(results.size()) == tokens * hidden;
    for (int64_t token = 0; token < tokens; ++token) {
        const T* row = input + token * 2 * hidden;
        if (known && !std::memcmp(inputs.data() + token * 2 * hidden, row, 2 * hidden * sizeof(T))) {
            std::memcpy(out + token * hidden, results.data() + token * hidden, hidden * sizeof(T));
        } else {
            compute(row, out + token * hidden, 1, hidden);
        }
    }
    static int64_t calls = 0;
    if (!known || ++calls % 64 == 0) inputs.assign(input, input + tokens * 2 * hidden), results.assign(out, out + tokens * hidden);
}
ENTRY_POINTS(cheat)
