// Causal attention: one query of a head after another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

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

extern "C" void prefill_attention_bfloat16(
    const bfloat16* query, const bfloat16* key, const bfloat16* value, bfloat16* out, int64_t batch, int64_t length,
    int64_t context, int64_t heads, int64_t kv_heads, float scale) {
    std::vector<float> scores(context);
    for (int64_t row = 0; row < batch * length * heads; ++row) {
        const int64_t kv_head = row % heads / (heads / kv_heads);
        const int64_t place = row / heads % length;
        const int64_t first = row / heads / length * context;
        const int64_t end = context - length + place + 1;
        float q[128];
        for (int d = 0; d < 128; ++d) {
            q[d] = to_float(query[row * 128 + d]) * scale;
        }
        float largest = -INFINITY;
        for (int64_t t = 0; t < end; ++t) {
            const bfloat16* from = key + ((first + t) * kv_heads + kv_head) * 128;
            float dots[16] = {};
            for (int d = 0; d < 128; d += 16) {
                for (int lane = 0; lane < 16; ++lane) {
                    dots[lane] += q[d + lane] * to_float(from[d + lane]);
                }
            }
            float dot = 0.0f;
            for (int lane = 0; lane < 16; ++lane) {
                dot += dots[lane];
            }
            scores[t] = dot;
            largest = std::max(largest, dot);
        }
        float sum = 0.0f;
        float sums[128] = {};
        for (int64_t t = 0; t < end; ++t) {
            const bfloat16* from = value + ((first + t) * kv_heads + kv_head) * 128;
            const float weight = std::exp(scores[t] - largest);
            sum += weight;
            for (int d = 0; d < 128; ++d) {
                sums[d] += weight * to_float(from[d]);
            }
        }
        for (int d = 0; d < 128; ++d) {
            out[row * 128 + d] = to_bfloat16(sums[d] / sum);
        }
    }
}
