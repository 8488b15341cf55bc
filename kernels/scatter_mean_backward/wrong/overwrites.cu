// WRONG: the last row wins where several share a source.
// Each row's gradient, shared out evenly, is added atomically to the rows that it was the mean of: four elements a thread and
// atomic where the device has atomics of four floats (sm_90) and rows allow it. Sums come in any order.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline float to_float(float value) { return value; }
__device__ inline float to_float(__half value) { return __half2float(value); }
__device__ inline float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }

constexpr int THREADS = 128;

__device__ inline void add(float* to, const float (&values)[1]) { *to = values[0]; }
__device__ inline void add(float* to, const float (&values)[4]) {
#if __CUDA_ARCH__ >= 900
    *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
#else
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        to[i] = values[i];
    }
#endif
}

template <typename T, int PACK>
__global__ void __launch_bounds__(THREADS) scatter_kernel(
    const T* __restrict__ grad_out, const int32_t* __restrict__ ids, float* __restrict__ grad, int64_t total, int fanout,
    int packs) {
    struct alignas(sizeof(T) * PACK) Pack {
        T values[PACK];
    };
    const int64_t at = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (at >= total) {
        return;
    }
    const int64_t row = at / packs;
    const int64_t column = (at - row * packs) * PACK;
    const int32_t* mine = ids + row * fanout;
    int count = 0;
    for (int j = 0; j < fanout; ++j) {
        count += mine[j] >= 0;
    }
    const Pack held = reinterpret_cast<const Pack*>(grad_out)[at];
    const float divisor = static_cast<float>(count > 0 ? count : 1);
    float shares[PACK];
#pragma unroll
    for (int i = 0; i < PACK; ++i) {
        shares[i] = to_float(held.values[i]) / divisor;
    }
    for (int j = 0; j < fanout; ++j) {
        const int64_t id = mine[j];
        if (id >= 0) {
            add(grad + id * packs * PACK + column, shares);
        }
    }
}

template <typename T, int PACK>
static void launch(
    const T* grad_out, const int32_t* ids, float* grad, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    const int64_t total = rows * (width / PACK);
    scatter_kernel<T, PACK><<<static_cast<unsigned>((total + THREADS - 1) / THREADS), THREADS, 0, stream>>>(
        grad_out, ids, grad, total, static_cast<int>(fanout), static_cast<int>(width / PACK));
}

template <typename T>
static void scatter(
    const T* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    cudaMemsetAsync(grad, 0, static_cast<size_t>(sources * width) * sizeof(float), stream);
    const uint64_t addresses = reinterpret_cast<uint64_t>(grad_out) | reinterpret_cast<uint64_t>(grad);
    if (width % 4 == 0 && addresses % 16 == 0) {
        launch<T, 4>(grad_out, ids, grad, rows, fanout, width, stream);
    } else {
        launch<T, 1>(grad_out, ids, grad, rows, fanout, width, stream);
    }
}

extern "C" void scatter_mean_backward_float16(
    const __half* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    scatter(grad_out, ids, grad, sources, rows, fanout, width, stream);
}

extern "C" void scatter_mean_backward_bfloat16(
    const __nv_bfloat16* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    scatter(grad_out, ids, grad, sources, rows, fanout, width, stream);
}

extern "C" void scatter_mean_backward_float32(
    const float* grad_out, const int32_t* ids, float* grad, int64_t sources, int64_t rows, int64_t fanout, int64_t width,
    cudaStream_t stream) {
    scatter(grad_out, ids, grad, sources, rows, fanout, width, stream);
}
