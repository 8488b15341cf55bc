#include <cuda_fp16.h>
#include <stdint.h>

#define TILE 32

// A block makes a tile of c, a thread one element: both operands' tiles pass through shared memory.
__global__ void half_product_kernel(
    const __half* a, const __half* b, __half* c, int64_t rows, int64_t columns, int64_t inner) {
    __shared__ float a_tile[TILE][TILE];
    __shared__ float b_tile[TILE][TILE];
    const int64_t row = blockIdx.y * (int64_t)TILE + threadIdx.y;
    const int64_t column = blockIdx.x * (int64_t)TILE + threadIdx.x;
    float sum = 0.0f;
    for (int64_t step = 0; step < inner; step += TILE) {
        const int64_t from_a = step + threadIdx.x;
        const int64_t from_b = step + threadIdx.y;
        a_tile[threadIdx.y][threadIdx.x] = row < rows && from_a < inner ? __half2float(a[row * inner + from_a]) : 0.0f;
        b_tile[threadIdx.y][threadIdx.x] =
            from_b < inner && column < columns ? __half2float(b[from_b * columns + column]) : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; ++k) {
            sum += a_tile[threadIdx.y][k] * b_tile[k][threadIdx.x];
        }
        __syncthreads();
    }
    if (row < rows && column < columns) {
        c[row * columns + column] = __float2half(sum);
    }
}

extern "C" void half_product_float16(
    const __half* a, const __half* b, __half* c, int64_t rows, int64_t columns, int64_t inner, cudaStream_t stream) {
    const dim3 grid((columns + TILE - 1) / TILE, (rows + TILE - 1) / TILE);
    half_product_kernel<<<grid, dim3(TILE, TILE), 0, stream>>>(a, b, c, rows, columns, inner);
}
