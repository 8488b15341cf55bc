// silu(gate) * up as fp8 codes, each 128 elements by a scale of their own: a block a group, a thread an element, the largest by a tree.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

__global__ void activate_groups(const __nv_bfloat16* input, __nv_fp8_e4m3* out, float* scales, int64_t hidden) {
    __shared__ float partial[128];
    const int64_t at = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
    const __nv_bfloat16* from = input + at / hidden * hidden + at;
    const float x = static_cast<float>(from[0]);
    const float value = x / (1.0f + expf(-x)) * static_cast<float>(from[hidden]);
    partial[threadIdx.x] = fabsf(value);
    __syncthreads();
    for (int stride = 64; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + stride]);
        }
        __syncthreads();
    }
    const float scale = fmaxf(partial[0], 1e-10f) / 448.0f;
    if (threadIdx.x == 0) {
        scales[blockIdx.x] = scale;
    }
    out[at] = __nv_fp8_e4m3(value / scale);
}

extern "C" void silu_and_mul_quantize_fp8_bfloat16(
    const __nv_bfloat16* input, __nv_fp8_e4m3* out, float* scales, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    activate_groups<<<static_cast<unsigned>(tokens * (hidden / 128)), 128, 0, stream>>>(input, out, scales, hidden);
}
