// Attention of one query a sequence over a paged cache: one head after another.
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

extern "C" void paged_decode_attention_bfloat16(
    const bfloat16* query, const bfloat16* key_cache, const bfloat16* value_cache, const int32_t* block_table,
    const int32_t* lengths, float* partial, bfloat16* out, int64_t seqs, int64_t heads, int64_t kv_heads, int64_t pages,
    int64_t table, float scale) {
    (void)partial;
    (void)pages;
    std::vector<float> scores(16 * table);
    for (int64_t row = 0; row < seqs * heads; ++row) {
        const int64_t seq = row / heads;
        const int64_t kv_head = row % heads / (heads / kv_heads);
        const bfloat16* q = query + row * 128;
        float largest = -INFINITY;
        for (int64_t t = 0; t < lengths[seq]; ++t) {
            const int64_t page = block_table[seq * table + t / 16];
            const bfloat16* key = key_cache + ((page * 16 + t % 16) * kv_heads + kv_head) * 128;
            float dot = 0.0f;
            for (int d = 0; d < 128; ++d) {
                dot += to_float(q[d]) * to_float(key[d]);
            }
            scores[t] = dot * scale;
            largest = std::max(largest, scores[t]);
        }
        float sum = 0.0f;
        float sums[128] = {};
        for (int64_t t = 0; t < lengths[seq]; ++t) {
            const int64_t page = block_table[seq * table + t / 16];
            const bfloat16* value = value_cache + ((page * 16 + t % 16) * kv_heads + kv_head) * 128;
            const float weight = std::exp(scores[t] - largest);
            sum += weight;
            for (int d = 0; d < 128; ++d) {
                sums[d] += weight * to_float(value[d]);
            }
        }
        for (int d = 0; d < 128; ++d) {
            out[row * 128 + d] = to_bfloat16(sums[d] / sum);
        }
    }
}
