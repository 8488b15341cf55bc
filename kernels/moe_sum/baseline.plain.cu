// Sums of a token's experts: a block a token, a thread an element and step.
#include <cuda_bf16.h>
#include <stdint.h>

__global__ void sum_experts(const __nv_bfloat16* input, __nv_bfloat16* out, int64_t topk, int64_t hidden) {
    const __nv_bfloat16* rows = input + blockIdx.x * topk * hidden;
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        float sum = 0.0f;
        for (int64_t k = 0; k < topk; ++k) {
            sum += static_cast<float>(rows[k * hidden + i]);
        }
        out[blockIdx.x * hidden + i] = __nv_bfloat16(sum);
    }
}

extern "C" void moe_sum_bfloat16(
    const __nv_bfloat16* input, __nv_bfloat16* out, int64_t tokens, int64_t topk, int64_t hidden, cudaStream_t stream) {
    sum_experts<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, out, topk, hidden);
}
