// Rows of 4-bit weights times a vector: a block a row, a byte a thread and step, the sum by a tree.
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int THREADS = 128;

__global__ void rows_times_vector(
    const __nv_bfloat16* x, const uint8_t* codes, const __nv_bfloat16* scales, const uint8_t* zeros, __nv_bfloat16* out,
    int64_t k) {
    __shared__ float partial[THREADS];
    const int64_t row = blockIdx.x;
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < k / 2; i += THREADS) {
        const int64_t group = row * (k / 128) + i / 64;
        const float zero = static_cast<float>(zeros[group]);
        const uint8_t two = codes[row * (k / 2) + i];
        const float part = static_cast<float>(x[2 * i]) * (static_cast<float>(two & 15) - zero) +
                           static_cast<float>(x[2 * i + 1]) * (static_cast<float>(two >> 4) - zero);
        sum += part * static_cast<float>(scales[group]);
    }
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] += partial[threadIdx.x + stride];
        }
        __syncthreads();
    }
    if (threadIdx.x == 0) {
        out[row] = __nv_bfloat16(partial[0]);
    }
}

extern "C" void w4a16_gemv_bfloat16(
    const __nv_bfloat16* x, const uint8_t* codes, const __nv_bfloat16* scales, const uint8_t* zeros, __nv_bfloat16* out,
    int64_t n, int64_t k, cudaStream_t stream) {
    rows_times_vector<<<static_cast<unsigned>(n), THREADS, 0, stream>>>(x, codes, scales, zeros, out, k);
}
