// A product of fp8 operands with scales for blocks: weights' rows one after another, each made wide once and met by all rows of the activations.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

struct bfloat16 {
    uint16_t bits;
};

static inline bfloat16 to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded)};
}

// e4m3: the seven bits behind the sign, moved under a float's exponent, and the difference of the two biases as a factor.
static inline float to_float(uint8_t code) {
    const uint32_t bits = static_cast<uint32_t>(code & 0x7fu) << 20 | static_cast<uint32_t>(code & 0x80u) << 24;
    float small;
    std::memcpy(&small, &bits, sizeof(small));
    return small * 0x1p120f;
}

extern "C" void block_scaled_fp8_product_bfloat16(
    const uint8_t* a, const float* a_scales, const uint8_t* b, const float* b_scales, bfloat16* out, int64_t m, int64_t n,
    int64_t groups) {
    const int64_t k = groups * 128;
    std::vector<float> left(m * k);
    std::vector<float> right(k);
    for (int64_t i = 0; i < m * k; ++i) {
        left[i] = to_float(a[i]) * a_scales[i / 128];
    }
    for (int64_t column = 0; column < n; ++column) {
        for (int64_t i = 0; i < k; ++i) {
            right[i] = to_float(b[column * k + i]) * b_scales[column / 128 * groups + i / 128];
        }
        for (int64_t row = 0; row < m; ++row) {
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
