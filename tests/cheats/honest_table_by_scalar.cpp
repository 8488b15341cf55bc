// Keeps what follows from a scalar, and computes it anew where a call has another one.
// Kernel: fused_add_rmsnorm
// Must end in: PASSED
#include "honest.h"

static float known = -1.0f, kept = 0.0f;  // a scalar, and what follows from it

template <typename T>
static void norm(T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps) {
    if (known != eps) {
        known = eps;
        kept = eps;
    }
    for (int64_t token = 0; token < tokens; ++token) {
        T* in = input + token * hidden;
        T* res = residual + token * hidden;
        float squares = 0.0f;
        for (int64_t i = 0; i < hidden; ++i) {
            const float sum = to_float(in[i]) + to_float(res[i]);
            store(res + i, sum);
            squares += sum * sum;
        }
        const float rms = sqrtf(squares / static_cast<float>(hidden) + kept);
        for (int64_t i = 0; i < hidden; ++i) store(in + i, to_float(res[i]) / rms * to_float(weight[i]));
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
