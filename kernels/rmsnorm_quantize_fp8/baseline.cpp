// residual += input, its RMS norm as fp8 codes by a scale a row: one row after another.
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

static inline bfloat16 to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded)};
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

extern "C" void rmsnorm_quantize_fp8_bfloat16(
    const bfloat16* input, bfloat16* residual, const bfloat16* weight, uint8_t* out, float* scales, int64_t tokens,
    int64_t hidden, float eps) {
    for (int64_t token = 0; token < tokens; ++token) {
        const bfloat16* in = input + token * hidden;
        bfloat16* sums = residual + token * hidden;
        float squares = 0.0f;
        for (int64_t i = 0; i < hidden; ++i) {
            const float sum = to_float(in[i]) + to_float(sums[i]);
            squares += sum * sum;
        }
        const float inverse_rms = 1.0f / std::sqrt(squares / static_cast<float>(hidden) + eps);
        float largest = 0.0f;
        for (int64_t i = 0; i < hidden; ++i) {
            const float sum = to_float(in[i]) + to_float(sums[i]);
            largest = std::max(largest, std::fabs(sum * inverse_rms * to_float(weight[i])));
        }
        const float scale = std::max(largest / 448.0f, 1.0f / (448.0f * 512.0f));
        scales[token] = scale;
        for (int64_t i = 0; i < hidden; ++i) {
            const float sum = to_float(in[i]) + to_float(sums[i]);
            sums[i] = to_bfloat16(sum);
            out[token * hidden + i] = to_fp8(sum * inverse_rms * to_float(weight[i]) / scale);
        }
    }
}
