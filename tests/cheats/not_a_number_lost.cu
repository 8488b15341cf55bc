// A NaN comes out as a number: fmaxf and fminf take the other operand.
// Must end in: INCORRECT
#include "honest.cuh"

template <typename T>
__global__ void lost(T* out, int64_t count) {
    for (int64_t i = blockIdx.x * 256ll + threadIdx.x; i < count; i += gridDim.x * 256ll)
        if (const float value = to_float(out[i]); value != value) store(out + i, 0.0f);
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    compute(input, out, tokens, hidden, stream);
    lost<<<64, 256, 0, stream>>>(out, tokens * hidden);
}
ENTRY_POINTS(cheat)
