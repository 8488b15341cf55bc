// A product with the weights of each row's expert: expert after expert, each row of its weights made wide once and met by all of its tokens.
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

extern "C" void grouped_moe_product_bfloat16(
    const bfloat16* x, const int32_t* offsets, const bfloat16* weights, bfloat16* out, int64_t rows, int64_t experts,
    int64_t n, int64_t k) {
    std::vector<float> left(rows * k);
    std::vector<float> right(k);
    for (int64_t i = 0; i < rows * k; ++i) {
        left[i] = to_float(x[i]);
    }
    for (int64_t expert = 0; expert < experts; ++expert) {
        const int64_t first = offsets[expert];
        const int64_t end = offsets[expert + 1];
        for (int64_t column = 0; column < n && first < end; ++column) {
            const bfloat16* from = weights + (expert * n + column) * k;
            for (int64_t i = 0; i < k; ++i) {
                right[i] = to_float(from[i]);
            }
            for (int64_t row = first; row < end; ++row) {
                float sums[16] = {};
                for (int64_t i = 0; i < k; i += 16) {
                    for (int lane = 0; lane < 16; ++lane) {
                        sums[lane] += left[row * k + i + lane] * right[i + lane];
                    }
                }
                float sum = 0.0f;
                for (int lane = 0; lane < 16; ++lane) {
                    sum += sums[lane];
                }
                out[row * n + column] = to_bfloat16(sum);
            }
        }
    }
}
