// Weights from NF4 codes: one byte after another.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

struct bfloat16 {
    uint16_t bits;
};


static inline bfloat16 to_bfloat16(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded)};
}

static const float NF4[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

extern "C" void dequantize_nf4_bfloat16(const uint8_t* packed, const float* absmax, bfloat16* out, int64_t blocks) {
    for (int64_t i = 0; i < blocks * 32; ++i) {
        out[2 * i] = to_bfloat16(NF4[packed[i] >> 4] * absmax[i / 32]);
        out[2 * i + 1] = to_bfloat16(NF4[packed[i] & 15] * absmax[i / 32]);
    }
}
