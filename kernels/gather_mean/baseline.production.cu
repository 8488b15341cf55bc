// The mean of the rows that each row of ids names: packs of 16 bytes, or of 8 where rows do not begin on 16, a group of threads a
// row, five neighbours in flight a thread. Rows that no pack divides take one thread an element. -1 is no id.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ inline void store(float* to, float value) { *to = value; }
__device__ inline void store(__half* to, float value) { *to = __float2half(value); }
__device__ inline void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }

constexpr int THREADS = 128;
constexpr int IN_FLIGHT = 5;

// PACK: elements that a thread loads at once.
template <typename T, int PACK>
__global__ void __launch_bounds__(THREADS) gather_mean_kernel(
    const T* __restrict__ table, const int32_t* __restrict__ ids, T* __restrict__ out, int64_t total, int fanout,
    int packs) {
    struct alignas(sizeof(T) * PACK) Pack {
        T values[PACK];
    };
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t row = at / packs;
    const int64_t column = at - row * packs;
    const Pack* from = reinterpret_cast<const Pack*>(table);
    const int32_t* mine = ids + row * fanout;
    float sum[PACK] = {};
    int count = 0;
    for (int begin = 0; begin < fanout; begin += IN_FLIGHT) {
        int32_t id[IN_FLIGHT];
        Pack held[IN_FLIGHT];
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            id[j] = begin + j < fanout ? mine[begin + j] : -1;
            if (id[j] >= 0) {
                held[j] = from[static_cast<int64_t>(id[j]) * packs + column];
            }
        }
#pragma unroll
        for (int j = 0; j < IN_FLIGHT; ++j) {
            if (id[j] >= 0) {
                ++count;
#pragma unroll
                for (int i = 0; i < PACK; ++i) {
                    sum[i] += to_float(held[j].values[i]);
                }
            }
        }
    }
    const float divisor = static_cast<float>(count > 0 ? count : 1);
    Pack mean;
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        store(mean.values + i, sum[i] / divisor);
    }
    reinterpret_cast<Pack*>(out)[at] = mean;
}

template <typename T, int PACK>
static void launch(
    const T* table, const int32_t* ids, T* out, int64_t rows, int64_t fanout, int64_t width, cudaStream_t stream) {
    const int64_t total = rows * (width / PACK);
    gather_mean_kernel<T, PACK><<<static_cast<unsigned>((total + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        table, ids, out, total, static_cast<int>(fanout), static_cast<int>(width / PACK));
}

template <typename T>
static void gather_mean(
    const T* table, const int32_t* ids, T* out, int64_t rows, int64_t fanout, int64_t width, cudaStream_t stream) {
    const uint64_t alignment = reinterpret_cast<uint64_t>(table) | reinterpret_cast<uint64_t>(out) |
                               (static_cast<uint64_t>(width) * sizeof(T));
    if (alignment % 16 == 0) {
        launch<T, 16 / sizeof(T)>(table, ids, out, rows, fanout, width, stream);
    } else if (alignment % 8 == 0) {
        launch<T, 8 / sizeof(T)>(table, ids, out, rows, fanout, width, stream);
    } else {
        launch<T, 1>(table, ids, out, rows, fanout, width, stream);
    }
}

extern "C" void gather_mean_float16(
    const __half* table, const int32_t* ids, __half* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    (void)nodes;
    gather_mean(table, ids, out, rows, fanout, width, stream);
}

extern "C" void gather_mean_bfloat16(
    const __nv_bfloat16* table, const int32_t* ids, __nv_bfloat16* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    (void)nodes;
    gather_mean(table, ids, out, rows, fanout, width, stream);
}

extern "C" void gather_mean_float32(
    const float* table, const int32_t* ids, float* out, int64_t nodes, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    (void)nodes;
    gather_mean(table, ids, out, rows, fanout, width, stream);
}
