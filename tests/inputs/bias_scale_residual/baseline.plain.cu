// A two-dimensional grid: a block takes 128 columns of one row.
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void chain(const T* x, const T* bias, const float* scale, const T* residual, T* out, int64_t columns) {
    const int64_t column = blockIdx.x * blockDim.x + threadIdx.x;
    const int64_t row = blockIdx.y;
    if (column < columns) {
        float v = float(x[row * columns + column]) + float(bias[column]);
        v = v > 0.0f ? v : 0.0f;
        out[row * columns + column] = T(v * scale[row] + float(residual[row * columns + column]));
    }
}

template <typename T>
static void start(const T* x, const T* bias, const float* scale, const T* residual, T* out, int64_t rows, int64_t columns, cudaStream_t stream) {
    dim3 block(128);
    dim3 grid((columns + block.x - 1) / block.x, rows);
    chain<<<grid, block, 0, stream>>>(x, bias, scale, residual, out, columns);
}

extern "C" void bias_scale_residual_float32(const float* x, const float* bias, const float* scale, const float* residual, float* out, int64_t rows, int64_t columns, cudaStream_t stream) {
    start(x, bias, scale, residual, out, rows, columns, stream);
}
extern "C" void bias_scale_residual_float16(const __half* x, const __half* bias, const float* scale, const __half* residual, __half* out, int64_t rows, int64_t columns, cudaStream_t stream) {
    start(x, bias, scale, residual, out, rows, columns, stream);
}
