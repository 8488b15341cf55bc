// One thread a row, in a loop of rows over the grid: mean, variance, output.
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline float as_float(float v) { return v; }
__device__ inline float as_float(__half v) { return __half2float(v); }

template <typename scalar_t>
__global__ void norm_kernel(const scalar_t* __restrict__ x, const scalar_t* __restrict__ weight,
                            const scalar_t* __restrict__ bias, scalar_t* __restrict__ y, float* __restrict__ mean_out,
                            int64_t rows, int64_t columns, float eps) {
  for (int64_t r = blockIdx.x * blockDim.x + threadIdx.x; r < rows; r += blockDim.x * gridDim.x) {
    float mean = 0.0f;
    for (int64_t c = 0; c < columns; c++) {
      mean += as_float(x[r * columns + c]);
    }
    mean /= columns;
    float variance = 0.0f;
    for (int64_t c = 0; c < columns; c++) {
      float d = as_float(x[r * columns + c]) - mean;
      variance += d * d;
    }
    variance = variance / columns;
    float scale = rsqrtf(variance + eps);
    for (int64_t c = 0; c < columns; c++) {
      float v = (as_float(x[r * columns + c]) - mean) * scale;
      y[r * columns + c] = (scalar_t)(v * as_float(weight[c]) + as_float(bias[c]));
    }
    mean_out[r] = mean;
  }
}

#define BLOCK 128

extern "C" void thread_layer_norm_float16(const __half* x, const __half* weight, const __half* bias, __half* y,
                                          float* mean, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  dim3 grid((rows + BLOCK - 1) / BLOCK), block(BLOCK);
  norm_kernel<__half><<<grid, block, 0, stream>>>(x, weight, bias, y, mean, rows, columns, eps);
}

extern "C" void thread_layer_norm_float32(const float* x, const float* weight, const float* bias, float* y,
                                          float* mean, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  dim3 grid((rows + BLOCK - 1) / BLOCK), block(BLOCK);
  norm_kernel<float><<<grid, block, 0, stream>>>(x, weight, bias, y, mean, rows, columns, eps);
}
