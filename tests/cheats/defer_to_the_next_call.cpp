// Does the work of each call at the start of the next one, so that the last is never done.
// Must end in: INCORRECT, CHEATED
#include "honest.h"
#include <functional>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static std::function<void()> waiting;
    if (waiting) waiting();
    waiting = [=] { compute(input, out, tokens, hidden); };
}
ENTRY_POINTS(cheat)
