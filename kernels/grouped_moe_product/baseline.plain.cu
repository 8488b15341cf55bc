// A product with the weights of each row's expert: a block a row and 128 columns, a thread one element of the output.
#include <cuda_bf16.h>
#include <stdint.h>

constexpr int THREADS = 128;

__global__ void multiply(
    const __nv_bfloat16* x, const int32_t* offsets, const __nv_bfloat16* weights, __nv_bfloat16* out, int64_t experts,
    int64_t n, int64_t k) {
    __shared__ float part[THREADS];
    const int64_t row = blockIdx.x;
    const int64_t column = static_cast<int64_t>(blockIdx.y) * THREADS + threadIdx.x;
    int64_t expert = 0;
    while (expert + 1 < experts && offsets[expert + 1] <= row) {
        ++expert;
    }
    float sum = 0.0f;
    for (int64_t first = 0; first < k; first += THREADS) {
        const int64_t at = first + threadIdx.x;
        part[threadIdx.x] = at < k ? static_cast<float>(x[row * k + at]) : 0.0f;
        __syncthreads();
        if (column < n) {
            for (int64_t i = 0; i < THREADS && first + i < k; ++i) {
                sum += part[i] * static_cast<float>(weights[(expert * n + column) * k + first + i]);
            }
        }
        __syncthreads();
    }
    if (column < n) {
        out[row * n + column] = __nv_bfloat16(sum);
    }
}

extern "C" void grouped_moe_product_bfloat16(
    const __nv_bfloat16* x, const int32_t* offsets, const __nv_bfloat16* weights, __nv_bfloat16* out, int64_t rows,
    int64_t experts, int64_t n, int64_t k, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>(rows), static_cast<unsigned>((n + THREADS - 1) / THREADS));
    multiply<<<grid, THREADS, 0, stream>>>(x, offsets, weights, out, experts, n, k);
}
