// vectorize
// timed 4096 4096
// A barrier in front of both loops lets no thread have the elements of another one in the second.
#include <stdint.h>

__global__ void first_kernel(const float* x, float* y, int rows, int n) {
  const int row = blockIdx.x;
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    y[row * n + i] = x[row * n + i] * 2.0f;
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    if (x[row * n + i] <= 0.0f) continue;
    y[row * n + i] += 1.0f;
  }
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, y, rows, n);
}
