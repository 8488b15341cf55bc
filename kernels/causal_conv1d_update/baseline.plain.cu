// A step of a causal convolution of four taps with SiLU: a block a sequence, a thread a channel and step.
#include <cuda_bf16.h>
#include <stdint.h>

__global__ void update(
    const __nv_bfloat16* x, __nv_bfloat16* state, const __nv_bfloat16* weight, const __nv_bfloat16* bias, const int32_t* slot,
    __nv_bfloat16* out, int64_t dim) {
    for (int64_t c = threadIdx.x; c < dim; c += blockDim.x) {
        __nv_bfloat16* held = state + (slot[blockIdx.x] * dim + c) * 3;
        const __nv_bfloat16 now = x[blockIdx.x * dim + c];
        float sum = static_cast<float>(bias[c]) + static_cast<float>(now) * static_cast<float>(weight[4 * c + 3]);
        for (int tap = 0; tap < 3; ++tap) {
            sum += static_cast<float>(held[tap]) * static_cast<float>(weight[4 * c + tap]);
        }
        held[0] = held[1];
        held[1] = held[2];
        held[2] = now;
        out[blockIdx.x * dim + c] = __nv_bfloat16(sum / (1.0f + expf(-sum)));
    }
}

extern "C" void causal_conv1d_update_bfloat16(
    const __nv_bfloat16* x, __nv_bfloat16* state, const __nv_bfloat16* weight, const __nv_bfloat16* bias, const int32_t* slot,
    __nv_bfloat16* out, int64_t batch, int64_t dim, int64_t slots, cudaStream_t stream) {
    (void)slots;
    update<<<static_cast<unsigned>(batch), 256, 0, stream>>>(x, state, weight, bias, slot, out, dim);
}
