// std::async for half of the rows, and a future of the other half that the caller fulfils itself: threads that end with the call.
// Must end in: PASSED
#include "honest.h"

#include <future>

template <typename T>
static void halves(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const int64_t half = tokens / 2;
    auto first = std::async(std::launch::async, [=] { compute(input, out, half, hidden); });
    auto second = std::async(std::launch::deferred, [=] { compute(input + half * 2 * hidden, out + half * hidden, tokens - half, hidden); });
    second.get();
    first.get();
}
ENTRY_POINTS(halves)
