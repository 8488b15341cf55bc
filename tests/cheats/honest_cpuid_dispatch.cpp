// Looks once which instructions the processor has, and takes its way by a pointer to a function, as math libraries do.
// Must end in: PASSED
#include "honest.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

template <typename T>
static void narrow(const T* input, T* out, int64_t tokens, int64_t hidden) { compute(input, out, tokens, hidden); }

#if defined(__x86_64__)
template <typename T>
__attribute__((target("avx2,fma"))) static void wide(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
}
#endif

template <typename T>
static void dispatched(const T* input, T* out, int64_t tokens, int64_t hidden) {
#if defined(__x86_64__)
    static void (*const way)(const T*, T*, int64_t, int64_t) = [] {
        unsigned a = 0, b = 0, c = 0, d = 0;
        const bool known = __get_cpuid_count(7, 0, &a, &b, &c, &d);
        return known && (b & bit_AVX2) && __builtin_cpu_supports("fma") ? wide<T> : narrow<T>;
    }();
    way(input, out, tokens, hidden);
#else
    narrow(input, out, tokens, hidden);
#endif
}
ENTRY_POINTS(dispatched)
