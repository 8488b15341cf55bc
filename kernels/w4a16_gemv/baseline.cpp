// Rows of 4-bit weights times a vector: one row after another.
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

extern "C" void w4a16_gemv_bfloat16(
    const bfloat16* x, const uint8_t* codes, const bfloat16* scales, const uint8_t* zeros, bfloat16* out, int64_t n, int64_t k) {
    for (int64_t row = 0; row < n; ++row) {
        float sum = 0.0f;
        for (int64_t group = 0; group < k / 128; ++group) {
            const uint8_t* held = codes + row * (k / 2) + group * 64;
            const bfloat16* given = x + group * 128;
            const float zero = zeros[row * (k / 128) + group];
            float part = 0.0f;
            for (int i = 0; i < 64; ++i) {
                part += to_float(given[2 * i]) * (static_cast<float>(held[i] & 15) - zero);
                part += to_float(given[2 * i + 1]) * (static_cast<float>(held[i] >> 4) - zero);
            }
            sum += part * to_float(scales[row * (k / 128) + group]);
        }
        out[row] = to_bfloat16(sum);
    }
}
