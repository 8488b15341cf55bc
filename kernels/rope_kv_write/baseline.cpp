// Rotation of queries and keys, keys and values into their slots of the cache: one head after another.
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

// `to` may be `from`.
static void rotate(const bfloat16* from, bfloat16* to, const float* cos_sin, int64_t half) {
    for (int64_t i = 0; i < half; ++i) {
        const float low = to_float(from[i]);
        const float high = to_float(from[i + half]);
        to[i] = to_bfloat16(low * cos_sin[i] - high * cos_sin[i + half]);
        to[i + half] = to_bfloat16(high * cos_sin[i] + low * cos_sin[i + half]);
    }
}

extern "C" void rope_kv_write_bfloat16(
    bfloat16* query, const bfloat16* key, const bfloat16* value, const float* cos_sin, const int64_t* at,
    const int64_t* slot, bfloat16* key_cache, bfloat16* value_cache, int64_t tokens, int64_t heads, int64_t kv_heads,
    int64_t head, int64_t positions, int64_t slots) {
    (void)positions;
    (void)slots;
    const int64_t row = kv_heads * head;
    for (int64_t token = 0; token < tokens; ++token) {
        const float* turn = cos_sin + at[token] * head;
        for (int64_t h = 0; h < heads; ++h) {
            bfloat16* mine = query + (token * heads + h) * head;
            rotate(mine, mine, turn, head / 2);
        }
        if (slot[token] < 0) {
            continue;
        }
        for (int64_t h = 0; h < kv_heads; ++h) {
            rotate(key + token * row + h * head, key_cache + slot[token] * row + h * head, turn, head / 2);
        }
        std::copy(value + token * row, value + (token + 1) * row, value_cache + slot[token] * row);
    }
}
