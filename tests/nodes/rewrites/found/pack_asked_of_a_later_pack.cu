// vectorize
// timed 4096 4096
// What decides whether y is read is told from the pack of x, which came later as some of its reads ask as well.
#include <stdint.h>

__global__ void first_kernel(const float* x, float* y, int rows, int n) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    y[row * n + i] = x[row * n + i] > 0.0f ? y[row * n + i] * x[row * n + i] : 0.0f;
  }
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, y, rows, n);
}
