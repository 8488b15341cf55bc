#pragma once
#include <cstdint>
#include <cstring>

// On bits, because g++ 12 compares a float that came from a _Float16 by a call.
static inline bool is_nan(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    return (bits & 0x7fffffffu) > 0x7f800000u;
}

// fmaxf and fminf as comparisons that vectorise: the other one where one is a NaN.
static inline float simd_max(float a, float b) { return a > b || is_nan(b) ? a : b; }
static inline float simd_min(float a, float b) { return a < b || is_nan(b) ? a : b; }
