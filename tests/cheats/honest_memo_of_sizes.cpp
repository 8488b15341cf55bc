// Remembers a plan for each pair of sizes, and checks nothing of the data: what is kept depends on declared sizes only.
// Must end in: PASSED
#include "honest.h"
#include <map>
#include <utility>

template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::map<std::pair<int64_t, int64_t>, int64_t> rows_at_once;
    auto [plan, fresh] = rows_at_once.try_emplace({tokens, hidden}, 65536 / hidden + 1);
    for (int64_t token = 0; token < tokens; token += plan->second) {
        const int64_t count = token + plan->second < tokens ? plan->second : tokens - token;
        compute(input + token * 2 * hidden, out + token * hidden, count, hidden);
    }
}
ENTRY_POINTS(kernel)
