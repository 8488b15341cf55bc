// Six megabytes of its caller's stack for what other kernels allocate.
// Must end in: PASSED
#include "honest.h"

template <typename T>
__attribute__((noinline)) static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    volatile char room[6 << 20];
    for (size_t at = 0; at < sizeof(room); at += 1 << 20) room[at] = 1;
    compute(input, out, tokens, hidden);
    room[sizeof(room) - 1] = room[0];
}
ENTRY_POINTS(kernel)
