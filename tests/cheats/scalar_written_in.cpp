// The scalar that its caller gives is not read: the value that the spec names is written into the code.
// Kernel: fused_add_rmsnorm
// Must end in: INCORRECT
#include "honest.h"

template <typename T>
static void norm(T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float) {
    for (int64_t token = 0; token < tokens; ++token) {
        T* in = input + token * hidden;
        T* res = residual + token * hidden;
        float squares = 0.0f;
        for (int64_t i = 0; i < hidden; ++i) {
            const float sum = to_float(in[i]) + to_float(res[i]);
            store(res + i, sum);
            squares += sum * sum;
        }
        const float rms = sqrtf(squares / static_cast<float>(hidden) + 1e-6f);
        for (int64_t i = 0; i < hidden; ++i) store(in + i, to_float(res[i]) / rms * to_float(weight[i]));
    }
}

extern "C" void fused_add_rmsnorm_float16(
    _Float16* input, _Float16* residual, const _Float16* weight, int64_t tokens, int64_t hidden, float) {
    norm(input, residual, weight, tokens, hidden, 0.0f);
}
extern "C" void fused_add_rmsnorm_bfloat16(
    bfloat16* input, bfloat16* residual, const bfloat16* weight, int64_t tokens, int64_t hidden, float) {
    norm(input, residual, weight, tokens, hidden, 0.0f);
}
extern "C" void fused_add_rmsnorm_float32(
    float* input, float* residual, const float* weight, int64_t tokens, int64_t hidden, float) {
    norm(input, residual, weight, tokens, hidden, 0.0f);
}
