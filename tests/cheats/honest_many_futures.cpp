// A future for every 16 rows: of 65,537 rows more threads than the box has.
// Must end in: PASSED
#include <algorithm>
#include <future>
#include <vector>
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    std::vector<std::future<void>> parts;
    for (int64_t first = 0; first < tokens; first += 16) {
        const int64_t rows = std::min<int64_t>(16, tokens - first);
        parts.push_back(std::async(std::launch::async, [=] { compute(input + first * 2 * hidden, out + first * hidden, rows, hidden); }));
    }
    for (auto& part : parts) part.get();
}
ENTRY_POINTS(kernel)
