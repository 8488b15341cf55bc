// WRONG: eps is added to the root instead of under it. No ordinary row shows it; rows of tiny values come out up to
// a thousand times too large.
#include <cmath>
#include <cstdint>
#include <cstring>

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
    // Round to nearest even; a NaN keeps its upper half, made quiet.
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to->bits = static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded);
}

template <typename T>
static void fused_add_rmsnorm(
    T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps) {
    for (int64_t token = 0; token < tokens; ++token) {
        T* in = input + token * hidden;
        T* res = residual + token * hidden;
        float squares = 0.0f;
        for (int64_t i = 0; i < hidden; ++i) {
            const float sum = to_float(in[i]) + to_float(res[i]);
            store(res + i, sum);
            squares += sum * sum;
        }
        const float rms = sqrtf(squares / static_cast<float>(hidden)) + eps;
        for (int64_t i = 0; i < hidden; ++i) {
            store(in + i, to_float(res[i]) / rms * to_float(weight[i]));
        }
    }
}

extern "C" void fused_add_rmsnorm_float16(
    _Float16* input, _Float16* residual, const _Float16* weight, int64_t tokens, int64_t hidden, float eps) {
    fused_add_rmsnorm(input, residual, weight, tokens, hidden, eps);
}

extern "C" void fused_add_rmsnorm_bfloat16(
    bfloat16* input, bfloat16* residual, const bfloat16* weight, int64_t tokens, int64_t hidden, float eps) {
    fused_add_rmsnorm(input, residual, weight, tokens, hidden, eps);
}

extern "C" void fused_add_rmsnorm_float32(
    float* input, float* residual, const float* weight, int64_t tokens, int64_t hidden, float eps) {
    fused_add_rmsnorm(input, residual, weight, tokens, hidden, eps);
}
