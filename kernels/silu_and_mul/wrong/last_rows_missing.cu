// WRONG: four rows at a time and nothing for what is left, so that up to three rows at the end stay unwritten.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

template <typename T>
__global__ void silu_and_mul_kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t token = blockIdx.x; token < tokens / 4 * 4; token += gridDim.x) {
        const T* gate = input + token * 2 * hidden;
        const T* up = gate + hidden;
        T* row = out + token * hidden;
        for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
            const float x = to_float(gate[i]);
            const float silu = x / (1.0f + expf(-x));
            store(row + i, silu * to_float(up[i]));
        }
    }
}

template <typename T>
void silu_and_mul(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const int threads = 128;
    const int blocks = tokens < 256 ? static_cast<int>(tokens) : 256;
    silu_and_mul_kernel<T><<<blocks, threads, 0, stream>>>(input, out, tokens, hidden);
}

extern "C" void silu_and_mul_float16(
    const __half* input, __half* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    silu_and_mul(input, out, tokens, hidden, stream);
}

extern "C" void silu_and_mul_bfloat16(
    const __nv_bfloat16* input, __nv_bfloat16* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    silu_and_mul(input, out, tokens, hidden, stream);
}

extern "C" void silu_and_mul_float32(
    const float* input, float* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    silu_and_mul(input, out, tokens, hidden, stream);
}
