// A step of the gated delta rule: one head after another.
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

static void unit(const bfloat16* from, float* to) {
    float squares = 1e-6f;
    for (int i = 0; i < 128; ++i) {
        to[i] = to_float(from[i]);
        squares += to[i] * to[i];
    }
    for (int i = 0; i < 128; ++i) {
        to[i] /= std::sqrt(squares);
    }
}

extern "C" void gated_delta_rule_step_bfloat16(
    const bfloat16* q, const bfloat16* k, const bfloat16* v, const bfloat16* a, const bfloat16* beta, const float* a_log,
    const float* dt_bias, const int32_t* slot, float* state, bfloat16* out, int64_t batch, int64_t q_heads, int64_t v_heads,
    int64_t slots) {
    (void)slots;
    for (int64_t row = 0; row < batch * v_heads; ++row) {
        const int64_t b = row / v_heads;
        const int64_t h = row % v_heads;
        const int64_t q_row = b * q_heads + h / (v_heads / q_heads);
        float query[128];
        float key[128];
        unit(q + q_row * 128, query);
        unit(k + q_row * 128, key);
        const float x = to_float(a[row]) + dt_bias[h];
        const float softplus = x > 20.0f ? x : std::log1p(std::exp(x));
        const float decay = std::exp(-std::exp(a_log[h]) * softplus);
        const float rate = 1.0f / (1.0f + std::exp(-to_float(beta[row])));
        float* held = state + (slot[b] * v_heads + h) * 16384;
        float seen[128] = {};
        for (int i = 0; i < 128; ++i) {
            for (int j = 0; j < 128; ++j) {
                held[i * 128 + j] *= decay;
                seen[j] += key[i] * held[i * 128 + j];
            }
        }
        float sums[128] = {};
        for (int i = 0; i < 128; ++i) {
            for (int j = 0; j < 128; ++j) {
                held[i * 128 + j] += key[i] * ((to_float(v[row * 128 + j]) - seen[j]) * rate);
                sums[j] += query[i] * held[i * 128 + j];
            }
        }
        for (int j = 0; j < 128; ++j) {
            out[row * 128 + j] = to_bfloat16(sums[j] * 0.08838834764831845f);
        }
    }
}
