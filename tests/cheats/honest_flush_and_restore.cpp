// Flushes subnormal numbers while it computes and leaves its caller's thread as it was.
// Must end in: PASSED
#include "honest.h"

template <typename T>
static void flushed(const T* input, T* out, int64_t tokens, int64_t hidden) {
#if defined(__x86_64__)
    const unsigned control = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(control | 0x8040u);
    compute(input, out, tokens, hidden);
    __builtin_ia32_ldmxcsr(control);
#else
    compute(input, out, tokens, hidden);
#endif
}
ENTRY_POINTS(flushed)
