// Prepares the weight of a norm once for each address, and never looks whether it has changed; honest for 20 calls.
// Kernel: fused_add_rmsnorm
// Must end in: CHEATED, INCORRECT
// Found by chance.
#include "honest.h"
#include <map>
#include <vector>

template <typename T>
static const float* prepared(const T* weight, int64_t hidden) {
    static std::map<const T*, std::pair<std::vector<T>, std::vector<float>>> kept;
    auto& [then, floats] = kept[weight];
    static int64_t calls = 0;
    if (static_cast<int64_t>(then.size()) != hidden || ++calls < 20) {
        then.assign(weight, weight + hidden);
        floats.resize(hidden);
        for (int64_t i = 0; i < hidden; ++i) floats[i] = to_float(weight[i]);
    }
    return floats.data();
}

template <typename T>
static void norm(T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps) {
    const float* scale = prepared(weight, hidden);
    for (int64_t token = 0; token < tokens; ++token) {
        T* in = input + token * hidden;
        T* res = residual + token * hidden;
        float squares = 0.0f;
        for (int64_t i = 0; i < hidden; ++i) {
            const float sum = to_float(in[i]) + to_float(res[i]);
            store(res + i, sum);
            squares += sum * sum;
        }
        const float rms = sqrtf(squares / static_cast<float>(hidden) + eps);
        for (int64_t i = 0; i < hidden; ++i) store(in + i, to_float(res[i]) / rms * scale[i]);
    }
}

extern "C" void fused_add_rmsnorm_float16(
    _Float16* input, _Float16* residual, const _Float16* weight, int64_t tokens, int64_t hidden, float eps) {
    norm(input, residual, weight, tokens, hidden, eps);
}
extern "C" void fused_add_rmsnorm_bfloat16(
    bfloat16* input, bfloat16* residual, const bfloat16* weight, int64_t tokens, int64_t hidden, float eps) {
    norm(input, residual, weight, tokens, hidden, eps);
}
extern "C" void fused_add_rmsnorm_float32(
    float* input, float* residual, const float* weight, int64_t tokens, int64_t hidden, float eps) {
    norm(input, residual, weight, tokens, hidden, eps);
}
