// Writes into its input while it works, and puts back what was there.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    T* scratch = const_cast<T*>(input);
    const T kept = scratch[0];
    *reinterpret_cast<volatile char*>(scratch) = 1;
    scratch[0] = kept;
    asm volatile("" ::: "memory");
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
