// residual += input; input = residual / sqrt(mean(residual^2) + eps) * weight: one block, or a cluster of two, a row, which it keeps in registers
// between the two passes.
#include <cooperative_groups.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

// A row gets as many threads as the device holds at once for all rows together; then a thread keeps several packs.
#define THREADS_IN_FLIGHT 270336  // tune: 135168 270336
// Up to this many rows two blocks share one: a block a row leaves multiprocessors idle.
#define CLUSTER_ROWS 128  // tune: 66 128

// Launches a kernel that may be set up while the one before it on the stream drains; every kernel here waits for that one
// (cudaGridDependencySynchronize) before it touches memory.
template <typename... Parameters, typename... Arguments>
inline void launch(
    void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes, cudaStream_t stream, unsigned cluster,
    Arguments... arguments) {
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[0].val.programmaticStreamSerializationAllowed = 1;
    attributes[1].id = cudaLaunchAttributeClusterDimension;
    attributes[1].val.clusterDim.x = cluster;
    attributes[1].val.clusterDim.y = 1;
    attributes[1].val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = block;
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = attributes;
    config.numAttrs = cluster > 1 ? 2 : 1;
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

__device__ __forceinline__ void store(float* to, float value) { *to = value; }
__device__ __forceinline__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

// 16 bytes, the widest load of a thread.
template <typename T>
struct alignas(16) Pack {
    static constexpr int kLanes = 16 / sizeof(T);
    T lane[kLanes];
};

constexpr int kWarp = 32;
constexpr int kSlots = 32;  // one for each warp of the largest block

// The sum over the warp, in every lane.
__device__ __forceinline__ float warp_sum(float value) {
#pragma unroll
    for (int offset = kWarp / 2; offset > 0; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
    return value;
}

// The sum over the block, for every thread, behind a single barrier: each warp adds up the slots for itself. `slots` must
// not be used again.
__device__ __forceinline__ float block_sum(float value, float* slots) {
    value = warp_sum(value);
    if (threadIdx.x % kWarp == 0) slots[threadIdx.x / kWarp] = value;
    __syncthreads();
    const int lane = threadIdx.x % kWarp;
    return warp_sum(lane < blockDim.x / kWarp ? slots[lane] : 0.0f);
}

// The same over a cluster of two blocks.
__device__ __forceinline__ float pair_sum(float value, float* slots, float* mine) {
    namespace cg = cooperative_groups;
    const float sum = block_sum(value, slots);
    const cg::cluster_group pair = cg::this_cluster();
    if (threadIdx.x == 0) *mine = sum;
    pair.sync();
    const float other = *pair.map_shared_rank(mine, pair.block_rank() ^ 1);
    pair.sync();  // nobody ends while his memory is read
    return sum + other;
}

// A row of at most kBlocks * blockDim.x * kItems packs.
template <typename T, int kItems, int kBlocks>
__global__ void __launch_bounds__(kItems <= 2 ? 1024 : 512) register_kernel(
    T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, int64_t hidden, float eps) {
    constexpr int kLanes = Pack<T>::kLanes;
    __shared__ float slots[kSlots];
    __shared__ float mine;
    const uint32_t packs = static_cast<uint32_t>(hidden / kLanes);
    Pack<T>* in = reinterpret_cast<Pack<T>*>(input) + static_cast<uint64_t>(blockIdx.x / kBlocks) * packs;
    Pack<T>* res = reinterpret_cast<Pack<T>*>(residual) + static_cast<uint64_t>(blockIdx.x / kBlocks) * packs;
    const Pack<T>* factor = reinterpret_cast<const Pack<T>*>(weight);
    const uint32_t first = (kBlocks > 1 ? blockIdx.x % kBlocks * blockDim.x : 0) + threadIdx.x;
    const uint32_t step = kBlocks * blockDim.x;
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();

    Pack<T> x[kItems], sums[kItems], w[kItems];
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
        const uint32_t i = first + item * step;
        if (i < packs) {
            x[item] = in[i];
            sums[item] = res[i];
            w[item] = factor[i];  // needed behind the barrier only: its latency is hidden there
        }
    }
    float wide[kItems][kLanes];
    float squares = 0.0f;
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
        const uint32_t i = first + item * step;
        if (i < packs) {
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                const float sum = to_float(x[item].lane[lane]) + to_float(sums[item].lane[lane]);
                squares += sum * sum;
                wide[item][lane] = sum;
                store(&sums[item].lane[lane], sum);
            }
            res[i] = sums[item];
        }
    }
    const float inverse_rms = rsqrtf((kBlocks > 1 ? pair_sum(squares, slots, &mine) : block_sum(squares, slots)) / static_cast<float>(hidden) + eps);
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
        const uint32_t i = first + item * step;
        if (i < packs) {
            const Pack<T>& factors = w[item];
            Pack<T> normed;
#pragma unroll
            for (int lane = 0; lane < kLanes; ++lane) {
                store(&normed.lane[lane], wide[item][lane] * inverse_rms * to_float(factors.lane[lane]));
            }
            in[i] = normed;
        }
    }
}

// For rows that do not begin on 16 bytes or are too long for registers: the second pass reads both again.
template <typename T>
__global__ void __launch_bounds__(1024) loop_kernel(
    T* __restrict__ input, T* __restrict__ residual, const T* __restrict__ weight, int64_t hidden, float eps) {
    __shared__ float slots[kSlots];
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
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

inline int64_t whole_warps(int64_t threads) { return (threads + kWarp - 1) / kWarp * kWarp; }

template <typename T>
void fused_add_rmsnorm(
    T* input, T* residual, const T* weight, int64_t tokens, int64_t hidden, float eps, cudaStream_t stream) {
    constexpr int64_t kLanes = Pack<T>::kLanes;
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(residual) |
                                reinterpret_cast<uintptr_t>(weight);
    const int64_t packs = hidden / kLanes;
    if (hidden % kLanes != 0 || addresses % 16 != 0 || packs > 2048) {
        const int64_t threads = hidden < 1024 ? whole_warps(hidden) : 1024;
        launch(loop_kernel<T>, dim3(static_cast<unsigned>(tokens)), dim3(static_cast<unsigned>(threads)), 0, stream, 1, input, residual, weight, hidden, eps);
        return;
    }
    if (tokens <= CLUSTER_ROWS && packs >= 256) {  // a shorter row has too little for two
        const int64_t half = (packs + 1) / 2;
        if (half <= 1024) {
            launch(register_kernel<T, 1, 2>, dim3(static_cast<unsigned>(2 * tokens)), dim3(static_cast<unsigned>(whole_warps(half))), 0, stream, 2, input, residual, weight, hidden, eps);
        } else {
            launch(register_kernel<T, 2, 2>, dim3(static_cast<unsigned>(2 * tokens)), dim3(static_cast<unsigned>(whole_warps((half + 1) / 2))), 0, stream, 2, input, residual, weight, hidden, eps);
        }
        return;
    }
    const int64_t one = whole_warps(packs), two = whole_warps((packs + 1) / 2), four = whole_warps((packs + 3) / 4);
    if (one <= 1024 && (one <= 64 || tokens * one <= THREADS_IN_FLIGHT)) {
        launch(register_kernel<T, 1, 1>, dim3(static_cast<unsigned>(tokens)), dim3(static_cast<unsigned>(one)), 0, stream, 1, input, residual, weight, hidden, eps);
    } else if (two <= 1024 && (two <= 64 || tokens * two <= THREADS_IN_FLIGHT)) {
        launch(register_kernel<T, 2, 1>, dim3(static_cast<unsigned>(tokens)), dim3(static_cast<unsigned>(two)), 0, stream, 1, input, residual, weight, hidden, eps);
    } else {
        launch(register_kernel<T, 4, 1>, dim3(static_cast<unsigned>(tokens)), dim3(static_cast<unsigned>(four)), 0, stream, 1, input, residual, weight, hidden, eps);
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
