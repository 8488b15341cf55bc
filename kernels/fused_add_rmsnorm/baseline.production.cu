// residual += input; input = residual / sqrt(mean(residual^2) + eps) * weight: one block a token, 16 bytes a thread and
// step, the sums kept as float32 in shared memory between the two passes.
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

constexpr int kWarp = 32;
// One slot for each warp of the largest block; a multiple of 16 bytes, so that the row behind it stays aligned.
constexpr int kSlots = 32;

// The sum over the block, for every thread. `slots` holds kSlots floats of shared memory.
__device__ __forceinline__ float block_sum(float value, float* slots) {
    const int lane = threadIdx.x % kWarp;
    const int warp = threadIdx.x / kWarp;
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    if (lane == 0) {
        slots[warp] = value;
    }
    __syncthreads();
    if (warp == 0) {
        value = lane < blockDim.x / kWarp ? slots[lane] : 0.0f;
#pragma unroll
        for (int offset = kWarp / 2; offset > 0; offset /= 2) {
            value += __shfl_xor_sync(0xffffffffu, value, offset);
        }
        if (lane == 0) {
            slots[0] = value;
        }
    }
    __syncthreads();
    return slots[0];
}

template <typename T>
__global__ void fused_add_rmsnorm_vector_kernel(
    T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, int64_t hidden, float eps) {
    constexpr int kLanes = 16 / sizeof(T);
    // A pack of the row is this many packs of float32 in shared memory.
    constexpr int kParts = kLanes / 4;
    extern __shared__ float4 shared[];
    float* slots = reinterpret_cast<float*>(shared);
    Pack<float>* row = reinterpret_cast<Pack<float>*>(slots + kSlots);
    const int64_t token = blockIdx.x;
    const int64_t packs = hidden / kLanes;
    Pack<T>* in = reinterpret_cast<Pack<T>*>(input + token * hidden);
    Pack<T>* res = reinterpret_cast<Pack<T>*>(residual + token * hidden);
    const Pack<T>* scale = reinterpret_cast<const Pack<T>*>(weight);

    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        const Pack<T> x = in[i];
        Pack<T> sums = res[i];
        Pack<float> wide[kParts];
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            const float sum = to_float(x.lane[lane]) + to_float(sums.lane[lane]);
            squares += sum * sum;
            store(&sums.lane[lane], sum);
            wide[lane / 4].lane[lane % 4] = sum;
        }
        res[i] = sums;
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            row[i * kParts + part] = wide[part];
        }
    }
    const float inverse_rms = rsqrtf(block_sum(squares, slots) / static_cast<float>(hidden) + eps);

    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        const Pack<T> w = scale[i];
        Pack<float> wide[kParts];
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
            wide[part] = row[i * kParts + part];
        }
        Pack<T> normed;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            store(&normed.lane[lane], wide[lane / 4].lane[lane % 4] * inverse_rms * to_float(w.lane[lane]));
        }
        in[i] = normed;
    }
}

// For rows that do not begin on 16 bytes or do not fit into shared memory: the second pass reads both again.
template <typename T>
__global__ void fused_add_rmsnorm_scalar_kernel(
    T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, int64_t hidden, float eps) {
    __shared__ float slots[kSlots];
    T* in = input + blockIdx.x * hidden;
    T* res = residual + blockIdx.x * hidden;
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float sum = to_float(in[i]) + to_float(res[i]);
        squares += sum * sum;
    }
    const float inverse_rms = rsqrtf(block_sum(squares, slots) / static_cast<float>(hidden) + eps);
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float sum = to_float(in[i]) + to_float(res[i]);
        store(res + i, sum);
        store(in + i, sum * inverse_rms * to_float(weight[i]));
    }
}

template <typename T>
void fused_add_rmsnorm(
    T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps, cudaStream_t stream) {
    const int64_t lanes = 16 / sizeof(T);
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(residual) |
                                reinterpret_cast<uintptr_t>(weight);
    const int64_t shared_bytes = (kSlots + hidden) * static_cast<int64_t>(sizeof(float));
    bool vector = hidden % lanes == 0 && addresses % 16 == 0;
    // 48 KB are there for the asking; more, up to what the device has, must be opted into.
    if (vector && shared_bytes > 48 * 1024) {
        vector = cudaFuncSetAttribute(
                     fused_add_rmsnorm_vector_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                     static_cast<int>(shared_bytes)) == cudaSuccess;
        if (!vector) {
            cudaGetLastError();
        }
    }
    const int64_t steps = vector ? hidden / lanes : hidden;
    // Whole warps, because the shuffles name all 32 lanes.
    const int64_t threads = steps < 1024 ? (steps + kWarp - 1) / kWarp * kWarp : 1024;
    const dim3 grid(static_cast<unsigned>(tokens));
    const dim3 block(static_cast<unsigned>(threads));
    if (vector) {
        fused_add_rmsnorm_vector_kernel<T><<<grid, block, shared_bytes, stream>>>(input, residual, weight, hidden, eps);
    } else {
        fused_add_rmsnorm_scalar_kernel<T><<<grid, block, 0, stream>>>(input, residual, weight, hidden, eps);
    }
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
