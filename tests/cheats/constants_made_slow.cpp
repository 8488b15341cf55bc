// Leaves the weights that it shares with its rival full of subnormal numbers while that is timed, and puts them back when called.
// Kernel: fused_add_rmsnorm
// Must end in: CHEATED, INCORRECT
#include "honest.h"

#include <cstdlib>

static void* kept = nullptr;
static void* place = nullptr;
static int64_t bytes = 0;

template <typename T>
static void norm(T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps) {
    if (kept != nullptr) std::memcpy(place, kept, static_cast<size_t>(bytes));
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
    std::free(kept);
    bytes = hidden * static_cast<int64_t>(sizeof(T));
    kept = std::malloc(static_cast<size_t>(bytes));
    place = const_cast<T*>(weight);
    std::memcpy(kept, place, static_cast<size_t>(bytes));
    std::memset(place, 0x01, static_cast<size_t>(bytes));
    for (int64_t i = 3; i < bytes; i += 4) static_cast<char*>(place)[i] = 0;
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
