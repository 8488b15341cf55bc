// residual += input, its RMS norm as fp8 codes by a scale a row: a block a row, an element a thread and step, three passes over memory.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int THREADS = 256;

__global__ void norm_rows(
    const __nv_bfloat16* input, __nv_bfloat16* residual, const __nv_bfloat16* weight, __nv_fp8_e4m3* out, float* scales,
    int64_t hidden, float eps) {
    __shared__ float partial[THREADS];
    const __nv_bfloat16* in = input + blockIdx.x * hidden;
    __nv_bfloat16* sums = residual + blockIdx.x * hidden;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < hidden; i += THREADS) {
        const float sum = static_cast<float>(in[i]) + static_cast<float>(sums[i]);
        squares += sum * sum;
    }
    partial[threadIdx.x] = squares;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] += partial[threadIdx.x + stride];
        }
        __syncthreads();
    }
    const float inverse_rms = 1.0f / sqrtf(partial[0] / static_cast<float>(hidden) + eps);
    __syncthreads();
    float largest = 0.0f;
    for (int64_t i = threadIdx.x; i < hidden; i += THREADS) {
        const float sum = static_cast<float>(in[i]) + static_cast<float>(sums[i]);
        largest = fmaxf(largest, fabsf(sum * inverse_rms * static_cast<float>(weight[i])));
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
        const float sum = static_cast<float>(in[i]) + static_cast<float>(sums[i]);
        sums[i] = __nv_bfloat16(sum);
        out[blockIdx.x * hidden + i] = __nv_fp8_e4m3(sum * inverse_rms * static_cast<float>(weight[i]) / scale);
    }
}

extern "C" void rmsnorm_quantize_fp8_bfloat16(
    const __nv_bfloat16* input, __nv_bfloat16* residual, const __nv_bfloat16* weight, __nv_fp8_e4m3* out, float* scales,
    int64_t tokens, int64_t hidden, float eps, cudaStream_t stream) {
    norm_rows<<<static_cast<unsigned>(tokens), THREADS, 0, stream>>>(input, residual, weight, out, scales, hidden, eps);
}
