// What generated kernels call. The generator puts in this file whole; nvcc takes it by itself.
#if !defined(WITHOUT_CLUSTERS)
#include <cooperative_groups.h>
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if !defined(WITHOUT_FP8)
#include <cuda_fp8.h>
#endif
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#if !defined(WITHOUT_PDL)
// Whether kernels are set up while their predecessors drain: the caller's choice, and worth it where all its kernels are.
extern "C" {
int enable_pdl = 0;
}
#endif

namespace {

// Neighbouring elements, moved by loads and stores of at most 16 bytes.
template <typename T, int Items>
struct alignas(sizeof(T) * Items < 16 ? sizeof(T) * Items : 16) Pack {
    T at[Items];
};

template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_pack(const T* from) {
    return *reinterpret_cast<const Pack<T, Items>*>(from);
}

template <typename T, int Items>
__device__ __forceinline__ void store_pack(T* to, const Pack<T, Items>& pack) {
    *reinterpret_cast<Pack<T, Items>*>(to) = pack;
}

__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

template <typename T>
__device__ __forceinline__ T to(float value);
template <>
__device__ __forceinline__ __half to<__half>(float value) { return __float2half_rn(value); }
template <>
__device__ __forceinline__ __nv_bfloat16 to<__nv_bfloat16>(float value) { return __float2bfloat16_rn(value); }
#if !defined(WITHOUT_FP8)
__device__ __forceinline__ float to_float(__nv_fp8_e4m3 value) { return static_cast<float>(value); }
template <>
__device__ __forceinline__ __nv_fp8_e4m3 to<__nv_fp8_e4m3>(float value) { return __nv_fp8_e4m3(value); }
__device__ __forceinline__ float round_to_float8_e4m3fn(float value) { return to_float(to<__nv_fp8_e4m3>(value)); }
#endif

[[maybe_unused]] __device__ __forceinline__ float round_to_float16(float value) { return to_float(to<__half>(value)); }
[[maybe_unused]] __device__ __forceinline__ float round_to_bfloat16(float value) { return to_float(to<__nv_bfloat16>(value)); }
template <typename T>
__device__ __forceinline__ int32_t round_to_int8(T value) { return static_cast<int8_t>(value); }
template <typename T>
__device__ __forceinline__ int32_t round_to_uint8(T value) { return static_cast<uint8_t>(value); }
template <typename T>
__device__ __forceinline__ int32_t round_to_int16(T value) { return static_cast<int16_t>(value); }

// Of integers, towards minus infinity.
template <typename T>
__device__ __forceinline__ T floor_quotient(T a, T b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
template <typename T>
__device__ __forceinline__ T floor_remainder(T a, T b) { return a - floor_quotient(a, b) * b; }

// NaN wins, as in torch.
template <typename T>
__device__ __forceinline__ T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <typename T>
__device__ __forceinline__ T minimum(T a, T b) { return a < b || a != a ? a : b; }
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ float maximum<float>(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
template <>
__device__ __forceinline__ float minimum<float>(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}
#endif
#endif

// Nobody reads this block's shared memory any more.
template <int Split>
__device__ __forceinline__ void leave_cluster() {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split > 1) {
        cooperative_groups::this_cluster().sync();
    }
#endif
}

// Every thread of a team gets the reduction of its values. A team is `Team` neighbouring threads of a block of `Threads`, the
// whole block, however large, where `Team` is 0, or a cluster of `Split` blocks.
template <int Threads, int Team, int Split, typename T, typename Join>
__device__ __forceinline__ T team_reduce(T value, T identity, Join join) {
#pragma unroll
    for (int step = (Team > 0 && Team < 32 ? Team : 32) / 2; step > 0; step /= 2) {
        value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    if constexpr (Team == 0 || Team > 32) {
        __shared__ T partial[32];
        const int warps = Team > 0 ? Team / 32 : blockDim.x / 32, other = threadIdx.x % 32;
        const int first = Team > 0 ? threadIdx.x / (Team > 0 ? Team : 1) * warps : 0;
        if (other == 0) {
            partial[threadIdx.x / 32] = value;
        }
        __syncthreads();
        value = other < warps ? partial[first + other] : identity;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
        }
    }
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split > 1) {
        __shared__ T of_block;
        const auto cluster = cooperative_groups::this_cluster();
        if (threadIdx.x == 0) {
            of_block = value;
        }
        cluster.sync();
        value = *cluster.map_shared_rank(&of_block, 0);
#pragma unroll
        for (int other = 1; other < Split; ++other) {
            value = join(value, *cluster.map_shared_rank(&of_block, other));
        }
    }
#endif
    return value;
}

// The first row of threads of a cluster's first block gets, for each of a thread's `Width` columns, the reduction over the `Deep`
// threads of a column in a block and the cluster's `Split` blocks.
template <int Lanes, int Deep, int Split, int Width, typename T, typename Join>
__device__ __forceinline__ void column_reduce(T (&values)[Width], Join join) {
    constexpr int kColumns = Lanes * Width, kThreads = Lanes * Deep;
    __shared__ T partial[Deep * kColumns];
    const int across = threadIdx.x % Lanes, down = threadIdx.x / Lanes;
#pragma unroll
    for (int one = 0; one < Width; ++one) {
        partial[down * kColumns + one * Lanes + across] = values[one];
    }
    __syncthreads();
    for (int column = threadIdx.x; column < kColumns; column += kThreads) {
        T value = partial[column];
        for (int other = 1; other < Deep; ++other) {
            value = join(value, partial[other * kColumns + column]);
        }
        partial[column] = value;
    }
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split > 1) {
        const auto cluster = cooperative_groups::this_cluster();
        cluster.sync();
        if (cluster.block_rank() == 0) {
            for (int column = threadIdx.x; column < kColumns; column += kThreads) {
                T value = partial[column];
#pragma unroll
                for (int other = 1; other < Split; ++other) {
                    value = join(value, *cluster.map_shared_rank(partial + column, other));
                }
                partial[column] = value;
            }
        }
    }
#endif
    __syncthreads();
#pragma unroll
    for (int one = 0; one < Width; ++one) {
        values[one] = partial[one * Lanes + across];
    }
}

#if !defined(WITHOUT_PDL)
// Waits for the grid in front of this one and lets the one behind it be set up: before it waits (TRIGGER_WHEN 0, never in clusters,
// which would take the places of those that they wait for), after that (1), or after that in the grid's last blocks alone (2).
template <int Split>
__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (TRIGGER_WHEN == 0 && Split == 1) {
        cudaTriggerProgrammaticLaunchCompletion();
    }
    cudaGridDependencySynchronize();
    if (TRIGGER_WHEN == 1 || (TRIGGER_WHEN == 0 && Split > 1) || (TRIGGER_WHEN == 2 && gridDim.x - blockIdx.x <= 512)) {
        cudaTriggerProgrammaticLaunchCompletion();
    }
#endif
}
#endif

#if !defined(WITHOUT_ATTRIBUTES)
// A launch in clusters of `cluster` blocks; `Dependent`: of a kernel that waits for its predecessor itself.
template <bool Dependent, typename... Parameters, typename... Arguments>
void launch_with(void (*kernel)(Parameters...), unsigned blocks, int cluster, int threads, cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.stream = stream;
    config.attrs = attributes;
    if (cluster > 1) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    }
#if !defined(WITHOUT_PDL)
    if (Dependent) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = enable_pdl;
    }
#endif
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}
#endif

// Of rows of at most `longest` packs, of which a thread is to keep about `items`: packs a thread, threads of a block, threads of a row
// (0: all of the block's, as many as the row at hand needs).
[[maybe_unused]] constexpr int items_of(int longest, int items) {
    const int least = (longest + 1023) / 1024;
    return items > least ? items : least;
}
[[maybe_unused]] constexpr int team_of(int longest, int items) {
    const int wanted = (longest + items_of(longest, items) - 1) / items_of(longest, items);
    int team = 1;
    while (team < wanted) {
        team *= 2;
    }
    return team > 64 ? 0 : team;
}
[[maybe_unused]] constexpr int threads_of(int longest, int items, int threads) {
    const int wanted = (longest + items_of(longest, items) - 1) / items_of(longest, items);
    return team_of(longest, items) == 0 ? (wanted + 31) / 32 * 32 : threads;
}

[[maybe_unused]] inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace
