// What most candidates here are built on: silu_and_mul by a plain kernel that is no faster than the baseline, so that a
// trick that does not work gains nothing. The tests put this text in place of the #include: a candidate is one file.
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
__device__ __forceinline__ void element(const T* input, T* out, int64_t token, int64_t i, int64_t hidden) {
    const float x = to_float(input[token * 2 * hidden + i]);
    store(out + token * hidden + i, x / (1.0f + __expf(-x)) * to_float(input[token * 2 * hidden + hidden + i]));
}

template <typename T>
__global__ void rows(const T* input, T* out, int64_t hidden) {
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) element(input, out, blockIdx.x, i, hidden);
}

template <typename T>
void compute(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    rows<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, out, hidden);
}

// The three entry points, each of which calls the template `name`.
#define ENTRY_POINTS(name)                                                                                            \
    extern "C" void silu_and_mul_float16(                                                                             \
        const __half* input, __half* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {                      \
        name(input, out, tokens, hidden, stream);                                                                     \
    }                                                                                                                 \
    extern "C" void silu_and_mul_bfloat16(                                                                            \
        const __nv_bfloat16* input, __nv_bfloat16* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {        \
        name(input, out, tokens, hidden, stream);                                                                     \
    }                                                                                                                 \
    extern "C" void silu_and_mul_float32(                                                                             \
        const float* input, float* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {                        \
        name(input, out, tokens, hidden, stream);                                                                     \
    }
