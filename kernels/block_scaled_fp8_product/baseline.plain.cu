// A product of fp8 operands with scales for blocks: a block 16 x 16 elements of the output, a thread one, operands in shared memory.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

constexpr int TILE = 16;

__global__ void multiply(
    const __nv_fp8_e4m3* a, const float* a_scales, const __nv_fp8_e4m3* b, const float* b_scales, __nv_bfloat16* out,
    int64_t m, int64_t n, int64_t groups) {
    __shared__ float left[TILE][TILE + 1];
    __shared__ float right[TILE][TILE + 1];
    const int64_t row = static_cast<int64_t>(blockIdx.y) * TILE + threadIdx.y;
    const int64_t column = static_cast<int64_t>(blockIdx.x) * TILE + threadIdx.x;
    const int64_t other = static_cast<int64_t>(blockIdx.x) * TILE + threadIdx.y;
    const int64_t k = groups * 128;
    float sum = 0.0f;
    for (int64_t group = 0; group < groups; ++group) {
        float part = 0.0f;
        for (int64_t first = group * 128; first < group * 128 + 128; first += TILE) {
            left[threadIdx.y][threadIdx.x] = row < m ? static_cast<float>(a[row * k + first + threadIdx.x]) : 0.0f;
            right[threadIdx.y][threadIdx.x] = other < n ? static_cast<float>(b[other * k + first + threadIdx.x]) : 0.0f;
            __syncthreads();
            for (int i = 0; i < TILE; ++i) {
                part += left[threadIdx.y][i] * right[threadIdx.x][i];
            }
            __syncthreads();
        }
        if (row < m && column < n) {
            sum += part * a_scales[row * groups + group] * b_scales[column / 128 * groups + group];
        }
    }
    if (row < m && column < n) {
        out[row * n + column] = __nv_bfloat16(sum);
    }
}

extern "C" void block_scaled_fp8_product_bfloat16(
    const __nv_fp8_e4m3* a, const float* a_scales, const __nv_fp8_e4m3* b, const float* b_scales, __nv_bfloat16* out,
    int64_t m, int64_t n, int64_t groups, cudaStream_t stream) {
    const dim3 grid(static_cast<unsigned>((n + TILE - 1) / TILE), static_cast<unsigned>((m + TILE - 1) / TILE));
    multiply<<<grid, dim3(TILE, TILE), 0, stream>>>(a, a_scales, b, b_scales, out, m, n, groups);
}
