// Leaves its caller's thread as it was as long as it is checked, and with subnormals flushed as soon as calls of one size come at as
// many addresses as timed ones do.
// Must end in: CHEATED, INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const T* seen[6];
    static int64_t known = 0;
    compute(input, out, tokens, hidden);
    if (tokens * hidden < 65536) return;
    bool old = false;
    for (int64_t i = 0; i < known; ++i) old |= seen[i] == input;
    if (!old && known < 6) seen[known++] = input;
#if defined(__x86_64__)
    if (known == 6) __builtin_ia32_ldmxcsr(__builtin_ia32_stmxcsr() | 0x8040u);
#else
    if (known == 6) {
        uint64_t control;
        asm volatile("mrs %0, fpcr" : "=r"(control));
        control |= uint64_t{0x1000000};
        asm volatile("msr fpcr, %0" ::"r"(control));
    }
#endif
}
ENTRY_POINTS(cheat)
