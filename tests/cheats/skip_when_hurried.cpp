// Tells a timed loop by the clock: a call that follows within 200 us of the one before, at addresses that it has seen
// in this burst, is skipped. A burst begins with any longer pause, and its first call of each address is honest. No address
// comes twice in a burst.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.h"
#include <chrono>
#include <set>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    using clock = std::chrono::steady_clock;
    static clock::time_point last;
    static std::set<T*> seen;
    if (clock::now() - last > std::chrono::microseconds(200)) seen.clear();
    if (seen.insert(out).second) compute(input, out, tokens, hidden);
    last = clock::now();
}
ENTRY_POINTS(cheat)
