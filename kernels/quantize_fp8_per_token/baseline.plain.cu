// fp8 codes of rows, each by its own scale: a block a row, an element a thread and step, the largest by a tree.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int THREADS = 256;

__global__ void quantize_rows(const __nv_bfloat16* input, __nv_fp8_e4m3* out, float* scales, int64_t hidden) {
    __shared__ float partial[THREADS];
    const __nv_bfloat16* row = input + blockIdx.x * hidden;
    float largest = 0.0f;
    for (int64_t i = threadIdx.x; i < hidden; i += THREADS) {
        largest = fmaxf(largest, fabsf(static_cast<float>(row[i])));
    }
    partial[threadIdx.x] = largest;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + stride]);
        }
        __syncthreads();
    }
    const float scale = fmaxf(partial[0] / 448.0f, 1.0f / (448.0f * 512.0f));
    if (threadIdx.x == 0) {
        scales[blockIdx.x] = scale;
    }
    for (int64_t i = threadIdx.x; i < hidden; i += THREADS) {
        out[blockIdx.x * hidden + i] = __nv_fp8_e4m3(static_cast<float>(row[i]) / scale);
    }
}

extern "C" void quantize_fp8_per_token_bfloat16(
    const __nv_bfloat16* input, __nv_fp8_e4m3* out, float* scales, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    quantize_rows<<<static_cast<unsigned>(tokens), THREADS, 0, stream>>>(input, out, scales, hidden);
}
