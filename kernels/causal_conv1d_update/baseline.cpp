// A step of a causal convolution of four taps with SiLU: one channel after another.
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

extern "C" void causal_conv1d_update_bfloat16(
    const bfloat16* x, bfloat16* state, const bfloat16* weight, const bfloat16* bias, const int32_t* slot, bfloat16* out,
    int64_t batch, int64_t dim, int64_t slots) {
    (void)slots;
    for (int64_t b = 0; b < batch; ++b) {
        for (int64_t c = 0; c < dim; ++c) {
            bfloat16* held = state + (slot[b] * dim + c) * 3;
            const bfloat16 now = x[b * dim + c];
            float sum = to_float(bias[c]) + to_float(now) * to_float(weight[4 * c + 3]);
            for (int tap = 0; tap < 3; ++tap) {
                sum += to_float(held[tap]) * to_float(weight[4 * c + tap]);
            }
            held[0] = held[1];
            held[1] = held[2];
            held[2] = now;
            out[b * dim + c] = to_bfloat16(sum / (1.0f + std::exp(-sum)));
        }
    }
}
