// fp8 codes of rows, each 128 elements by a scale of their own: one group after another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

struct bfloat16 {
    uint16_t bits;
};

static inline float to_float(bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

// Nearest of e4m3's numbers, ties to even, 448 the largest.
static inline uint8_t to_fp8(float value) {
    const float size = std::fmin(std::fabs(value), 448.0f);
    uint32_t bits;
    std::memcpy(&bits, &size, sizeof(bits));
    const uint32_t rounded = ((bits + 0x7ffffu + ((bits >> 20) & 1u)) >> 20) - (120u << 3);
    const uint32_t code = size < 0.015625f ? static_cast<uint32_t>(std::nearbyint(size * 512.0f)) : rounded;
    return static_cast<uint8_t>(code | (std::signbit(value) ? 0x80u : 0u));
}

extern "C" void quantize_fp8_per_group_bfloat16(
    const bfloat16* input, uint8_t* out, float* scales, int64_t tokens, int64_t hidden) {
    for (int64_t group = 0; group < tokens * (hidden / 128); ++group) {
        const bfloat16* values = input + group * 128;
        float largest = 1e-10f;
        for (int i = 0; i < 128; ++i) {
            largest = std::max(largest, std::fabs(to_float(values[i])));
        }
        const float scale = largest / 448.0f;
        scales[group] = scale;
        for (int i = 0; i < 128; ++i) {
            out[group * 128 + i] = to_fp8(to_float(values[i]) / scale);
        }
    }
}
