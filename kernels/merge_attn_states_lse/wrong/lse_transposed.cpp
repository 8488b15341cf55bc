// WRONG: lse is [heads, tokens] but is read and written as [tokens, heads].
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

// A part without keys has an lse of -inf; some kernels write +inf for it.
static inline float without_infinity(float lse) { return lse == INFINITY ? -INFINITY : lse; }

template <typename T>
static void merge_attn_states_lse(
    const T* prefix_output, const float* prefix_lse, const T* suffix_output, const float* suffix_lse, T* output,
    float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim) {
    for (int64_t token = 0; token < tokens; ++token) {
        for (int64_t head = 0; head < heads; ++head) {
            const int64_t row = (token * heads + head) * head_dim;
            const int64_t at = token * heads + head;
            for (int64_t i = 0; i < head_dim; ++i) {
                const float prefix = without_infinity(prefix_lse[at]);
                const float suffix = without_infinity(suffix_lse[at]);
                const float highest = prefix > suffix ? prefix : suffix;
                const bool empty = highest == -INFINITY;
                const float p = empty ? 0.0f : expf(prefix - highest);
                const float s = empty ? 0.0f : expf(suffix - highest);
                const float total = empty ? 1.0f : p + s;
                const float mixed = to_float(prefix_output[row + i]) * (p / total) +
                                    to_float(suffix_output[row + i]) * (s / total);
                store(output + row + i, mixed);
                if (i == 0) {
                    output_lse[at] = logf(total) + highest;
                }
            }
        }
    }
}

extern "C" void merge_attn_states_lse_float16(
    const _Float16* prefix_output, const float* prefix_lse, const _Float16* suffix_output, const float* suffix_lse,
    _Float16* output, float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim);
}

extern "C" void merge_attn_states_lse_bfloat16(
    const bfloat16* prefix_output, const float* prefix_lse, const bfloat16* suffix_output, const float* suffix_lse,
    bfloat16* output, float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim);
}

extern "C" void merge_attn_states_lse_float32(
    const float* prefix_output, const float* prefix_lse, const float* suffix_output, const float* suffix_lse,
    float* output, float* output_lse, int64_t tokens, int64_t heads, int64_t head_dim) {
    merge_attn_states_lse(
        prefix_output, prefix_lse, suffix_output, suffix_lse, output, output_lse, tokens, heads, head_dim);
}
