// WRONG: the sum is normalised but never written back, so that the residual of the next layer lacks this one.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

// A power of two: the tree halves it.
constexpr int kThreads = 256;

template <typename T>
__global__ void fused_add_rmsnorm_kernel(
    T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps) {
    __shared__ float partial[kThreads];
    for (int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
        T* in = input + token * hidden;
        T* res = residual + token * hidden;
        float squares = 0.0f;
        for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
            const float sum = to_float(in[i]) + to_float(res[i]);
            squares += sum * sum;
        }
        partial[threadIdx.x] = squares;
        __syncthreads();
        for (int stride = blockDim.x / 2; stride > 0; stride /= 2) {
            if (threadIdx.x < stride) {
                partial[threadIdx.x] += partial[threadIdx.x + stride];
            }
            __syncthreads();
        }
        const float rms = sqrtf(partial[0] / static_cast<float>(hidden) + eps);
        for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
            store(in + i, (to_float(in[i]) + to_float(res[i])) / rms * to_float(weight[i]));
        }
        // The next row writes `partial` anew.
        __syncthreads();
    }
}

template <typename T>
void fused_add_rmsnorm(
    T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps, cudaStream_t stream) {
    const int blocks = tokens < 256 ? static_cast<int>(tokens) : 256;
    fused_add_rmsnorm_kernel<T><<<blocks, kThreads, 0, stream>>>(input, residual, weight, tokens, hidden, eps);
}

extern "C" void fused_add_rmsnorm_float16(
    __half* input, __half* residual, const __half* weight, int64_t tokens, int64_t hidden, float eps,
    cudaStream_t stream) {
    fused_add_rmsnorm(input, residual, weight, tokens, hidden, eps, stream);
}

extern "C" void fused_add_rmsnorm_bfloat16(
    __nv_bfloat16* input, __nv_bfloat16* residual, const __nv_bfloat16* weight, int64_t tokens, int64_t hidden,
    float eps, cudaStream_t stream) {
    fused_add_rmsnorm(input, residual, weight, tokens, hidden, eps, stream);
}

extern "C" void fused_add_rmsnorm_float32(
    float* input, float* residual, const float* weight, int64_t tokens, int64_t hidden, float eps,
    cudaStream_t stream) {
    fused_add_rmsnorm(input, residual, weight, tokens, hidden, eps, stream);
}
