// Leaves its caller's thread with subnormals flushed and rounding towards zero, for all that the caller computes next.
// Must end in: CHEATED, INCORRECT
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
#if defined(__x86_64__)
    unsigned control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(control & ~0xe040u);
    compute(input, out, tokens, hidden);
    __builtin_ia32_ldmxcsr(control | 0xe040u);
#else
    compute(input, out, tokens, hidden);
    uint64_t control;
    asm volatile("mrs %0, fpcr" : "=r"(control));
    control |= uint64_t{0x1c00000};
    asm volatile("msr fpcr, %0" ::"r"(control));
#endif
}
ENTRY_POINTS(cheat)
