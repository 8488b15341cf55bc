// Mathematics in loops that g++ vectorises: for the compiler's C++ and for drafts'.
#include <math.h>
#include <stdint.h>
#include <string.h>
#if defined(__GNUC__) && !defined(__clang__)
// Else sqrtf and comparisons keep loops from being vectorised, and a clamp becomes branches or another copy of what follows it.
#pragma GCC optimize("no-math-errno", "no-trapping-math", "no-thread-jumps")
#endif

// Else it may set errno, by the compiler's own declaration, whatever the pragma says, and no loop with it is vectorised.
extern "C" __attribute__((const)) float sqrtf(float) noexcept;
extern "C" __attribute__((const)) double sqrt(double) noexcept;

// With vector forms by the C library, which g++ takes by itself only under -ffast-math.
#if defined(__x86_64__) && defined(__GLIBC__) && __GLIBC__ == 2 && __GLIBC_MINOR__ >= 35
extern "C" {
#pragma omp declare simd notinbranch
[[gnu::const]] float logf(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float log1pf(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float log2f(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float exp2f(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float expm1f(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float tanhf(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float erff(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float erfcf(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float sinf(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float cosf(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float atanf(float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float powf(float, float) noexcept;
#pragma omp declare simd notinbranch
[[gnu::const]] float atan2f(float, float) noexcept;
}
#endif

namespace {

template <typename To, typename From>
inline To as_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "");
    To bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

// e^x to 1 unit of the last place: x = n ln 2 + r, a polynomial for e^r, 2^n by two factors, so that subnormal results come out too.
[[maybe_unused]] inline float exponential(float x) {
    x = x < -104.0f ? -104.0f : x;
    x = x > 89.0f ? 89.0f : x;
    const float shifted = x * 1.44269504f + 12582912.0f;  // 1.5 * 2^23: its last bit is worth one
    const float n = shifted - 12582912.0f, r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
    float tail = r * 1.38144358e-3f + 8.36879667e-3f;
    tail = tail * r + 4.16683964e-2f;
    tail = tail * r + 1.66665196e-1f;
    tail = tail * r + 4.99999940e-1f;
    const int32_t exponent = as_bits<int32_t>(shifted) - 0x4b400000, half = exponent >> 1;
    const float low = as_bits<float>((half + 127) << 23), high = as_bits<float>((exponent - half + 127) << 23);
    return ((tail * r) * r + r + 1.0f) * low * high;
}
[[maybe_unused]] inline double exponential(double x) { return exp(x); }

}  // namespace
