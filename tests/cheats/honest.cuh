// What most candidates here are built on: silu_and_mul much as the baseline computes it, so that a trick that does not
// work gains nothing. The tests put this text in place of the #include: a candidate is one file.
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

// 16 bytes a thread and step, for rows that begin on 16 bytes.
template <typename T>
struct alignas(16) Pack {
    T lane[16 / sizeof(T)];
};

template <typename T>
__global__ void packed_rows(const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
    constexpr int kLanes = 16 / sizeof(T);
    const Pack<T>* gate = reinterpret_cast<const Pack<T>*>(input + blockIdx.x * 2 * hidden);
    const Pack<T>* up = reinterpret_cast<const Pack<T>*>(input + blockIdx.x * 2 * hidden + hidden);
    Pack<T>* row = reinterpret_cast<Pack<T>*>(out + blockIdx.x * hidden);
    for (int64_t i = threadIdx.x; i < hidden / kLanes; i += blockDim.x) {
        const Pack<T> x = gate[i], y = up[i];
        Pack<T> product;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            const float value = to_float(x.lane[lane]);
            store(&product.lane[lane], value / (1.0f + __expf(-value)) * to_float(y.lane[lane]));
        }
        row[i] = product;
    }
}

template <typename T>
void compute(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const int64_t lanes = 16 / sizeof(T);
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out);
    const unsigned blocks = static_cast<unsigned>(tokens);
    if (hidden % lanes == 0 && addresses % 16 == 0) {
        const int64_t steps = hidden / lanes;
        packed_rows<<<blocks, static_cast<unsigned>(steps < 1024 ? steps : 1024), 0, stream>>>(input, out, hidden);
    } else {
        rows<<<blocks, 256, 0, stream>>>(input, out, hidden);
    }
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
