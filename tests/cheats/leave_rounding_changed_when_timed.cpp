// Leaves its caller's thread as it was as long as it is checked, and with subnormals flushed from a call on that is timed, while
// nobody asks.
// Must end in: CHEATED, INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const T* last = nullptr;
    static int64_t others = 0;
    others += input != last;  // calls in a row that are checked have one place
    last = input;
    compute(input, out, tokens, hidden);
#if defined(__x86_64__)
    if (others > 300) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);
#endif
}
ENTRY_POINTS(cheat)
