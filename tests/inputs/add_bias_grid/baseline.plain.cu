// A grid of two dimensions, rows along x and columns along y, one element a thread; the residual is optional.
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

using scalar = __half;

template <typename T, int residuals>
__global__ void add_bias_kernel(T* out, const T* in, const T* residual, const T* bias, const int columns) {
  const int column = blockIdx.y * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  T& here = out[blockIdx.x * columns + column];
  float v = (float)in[blockIdx.x * columns + column] + (float)bias[column];
  if (residuals == 1) {
    v += (float)residual[blockIdx.x * columns + column];
  }
  here = (T)v;
}

extern "C" void add_bias_grid_float16(const scalar* in, const scalar* residual, const scalar* bias, scalar* out, int64_t rows,
                                      int64_t columns, cudaStream_t stream) {
  const int blocks_a_row = ceil(float(columns) / 256);
  dim3 grid(rows, blocks_a_row);
  add_bias_kernel<scalar, 1><<<grid, 256, 0, stream>>>(out, in, residual, bias, columns);
}
