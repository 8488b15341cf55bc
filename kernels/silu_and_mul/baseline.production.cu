// out[t][i] = silu(input[t][i]) * input[t][hidden + i]: one block a token, 16 bytes a thread and step,
// in the shape of FlashInfer's act_and_mul.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

// 16 bytes, the widest load of a thread.
template <typename T>
struct alignas(16) Pack {
    T lane[16 / sizeof(T)];
};

__device__ __forceinline__ float silu(float x) { return x / (1.0f + __expf(-x)); }

template <typename T>
__global__ void silu_and_mul_vector_kernel(
    const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
    constexpr int kLanes = 16 / sizeof(T);
    const int64_t token = blockIdx.x;
    const int64_t packs = hidden / kLanes;
    const Pack<T>* gate = reinterpret_cast<const Pack<T>*>(input + token * 2 * hidden);
    const Pack<T>* up = reinterpret_cast<const Pack<T>*>(input + token * 2 * hidden + hidden);
    Pack<T>* row = reinterpret_cast<Pack<T>*>(out + token * hidden);
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        const Pack<T> x = gate[i];
        const Pack<T> y = up[i];
        Pack<T> product;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            store(&product.lane[lane], silu(to_float(x.lane[lane])) * to_float(y.lane[lane]));
        }
        row[i] = product;
    }
    // What is left behind the last step that the whole block took. As in FlashInfer these elements are among the packs
    // above already: a row of 12288 float16 computes its last 4096 twice, one of 4096 none.
    const int64_t step = static_cast<int64_t>(blockDim.x) * kLanes;
    const T* gate_tail = input + token * 2 * hidden;
    const T* up_tail = gate_tail + hidden;
    for (int64_t i = hidden - hidden % step + threadIdx.x; i < hidden; i += blockDim.x) {
        store(out + token * hidden + i, silu(to_float(gate_tail[i])) * to_float(up_tail[i]));
    }
}

// For rows that do not begin on 16 bytes.
template <typename T>
__global__ void silu_and_mul_scalar_kernel(
    const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
    const int64_t token = blockIdx.x;
    const T* gate = input + token * 2 * hidden;
    const T* up = gate + hidden;
    T* row = out + token * hidden;
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        store(row + i, silu(to_float(gate[i])) * to_float(up[i]));
    }
}

template <typename T>
void silu_and_mul(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const int64_t lanes = 16 / sizeof(T);
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out);
    const bool aligned = hidden % lanes == 0 && addresses % 16 == 0;
    const int64_t steps = aligned ? hidden / lanes : hidden;
    const dim3 grid(static_cast<unsigned>(tokens));
    const dim3 block(static_cast<unsigned>(steps < 1024 ? steps : 1024));
    if (aligned) {
        silu_and_mul_vector_kernel<T><<<grid, block, 0, stream>>>(input, out, hidden);
    } else {
        silu_and_mul_scalar_kernel<T><<<grid, block, 0, stream>>>(input, out, hidden);
    }
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
