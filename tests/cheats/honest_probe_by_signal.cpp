// Tries at its first call whether an instruction is there, with a handler for the signal that says no, and puts the old one back.
// Must end in: PASSED
#include "honest.h"

#include <csetjmp>
#include <signal.h>

static sigjmp_buf back;
static void jump(int) { siglongjmp(back, 1); }

static bool has_wide_instructions() {
    struct sigaction action = {}, before;
    action.sa_handler = jump;
    sigaction(SIGILL, &action, &before);
    bool found = false;
    if (sigsetjmp(back, 1) == 0) {
#if defined(__AVX512F__)
        asm volatile("vpxord %%zmm16, %%zmm16, %%zmm16" ::: "xmm16");
#endif
        found = true;
    }
    sigaction(SIGILL, &before, nullptr);
    return found;
}

template <typename T>
static void probed(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const bool wide = has_wide_instructions();
    (void)wide;
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(probed)
