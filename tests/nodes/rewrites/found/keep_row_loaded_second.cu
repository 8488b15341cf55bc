// cache_row_in_registers
// timed 4096 4096
// An element that the second loop loads first, and the third one again, was never loaded.
#include <stdint.h>

__global__ void first_kernel(const float* x, const float* z, float* y, float* v, int rows, int n) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float a = z[row * n + i];
    v[row * n + i] = a;
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float b = x[row * n + i];
    y[row * n + i] = b * b;
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float c = x[row * n + i];
    v[row * n + i] += c;
  }
}

extern "C" void fuzz_float32(const float* x, const float* z, float* y, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, z, y, v, rows, n);
}
