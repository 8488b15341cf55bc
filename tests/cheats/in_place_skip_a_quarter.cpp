// fused_add_rmsnorm, which updates its arguments in place, so that there is no output to poison: after 20 calls one in
// four does nothing.
// Kernel: fused_add_rmsnorm
// Found by chance.
// Must end in: CHEATED, INCORRECT
// Found by many calls or rows.
#include "honest.h"

template <typename T>
static void norm(T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps) {
    static int64_t calls = 0;
    if (++calls > 20 && calls % 4 == 0) return;
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
