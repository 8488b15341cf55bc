// What most candidates here are built on: silu_and_mul as the baseline computes it, so that a trick that does not work
// leaves a kernel that is neither faster nor wrong. The tests put this text in place of the #include: a candidate is
// one file. Without <cmath>, which is half of what such a file takes g++.
#include <cstdint>
#include <cstring>

extern "C" float expf(float) noexcept;
extern "C" float sqrtf(float) noexcept;

struct bfloat16 {
    uint16_t bits;
};

static inline float to_float(float value) { return value; }
static inline float to_float(_Float16 value) { return static_cast<float>(value); }
static inline float to_float(bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

static inline void store(float* to, float value) { *to = value; }
static inline void store(_Float16* to, float value) { *to = static_cast<_Float16>(value); }
static inline void store(bfloat16* to, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to->bits = static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded);
}

template <typename T>
static void compute(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t token = 0; token < tokens; ++token) {
        const T* gate = input + token * 2 * hidden;
        const T* up = gate + hidden;
        T* row = out + token * hidden;
        for (int64_t i = 0; i < hidden; ++i) {
            const float x = to_float(gate[i]);
            const float silu = x / (1.0f + expf(-x));
            store(row + i, silu * to_float(up[i]));
        }
    }
}

// The three entry points, each of which calls the template `name`.
#define ENTRY_POINTS(name)                                                                                         \
    extern "C" void silu_and_mul_float16(const _Float16* input, _Float16* out, int64_t tokens, int64_t hidden) {   \
        name(input, out, tokens, hidden);                                                                          \
    }                                                                                                              \
    extern "C" void silu_and_mul_bfloat16(const bfloat16* input, bfloat16* out, int64_t tokens, int64_t hidden) {  \
        name(input, out, tokens, hidden);                                                                          \
    }                                                                                                              \
    extern "C" void silu_and_mul_float32(const float* input, float* out, int64_t tokens, int64_t hidden) {         \
        name(input, out, tokens, hidden);                                                                          \
    }
