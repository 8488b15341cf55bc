// Sums of a token's experts: one element after another.
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

extern "C" void moe_sum_bfloat16(const bfloat16* input, bfloat16* out, int64_t tokens, int64_t topk, int64_t hidden) {
    for (int64_t token = 0; token < tokens; ++token) {
        const bfloat16* rows = input + token * topk * hidden;
        for (int64_t i = 0; i < hidden; ++i) {
            float sum = 0.0f;
            for (int64_t k = 0; k < topk; ++k) {
                sum += to_float(rows[k * hidden + i]);
            }
            out[token * hidden + i] = to_bfloat16(sum);
        }
    }
}
