// block_per_row cluster_split
// timed 8192 1024
#include <stdint.h>

template <typename T>
__global__ void first_kernel(const T* x, T* y, int rows, int n) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  float sum1 = 0.0f;
  for (int i = 0; i < n; ++i) {
    sum1 = sum1 + 0.5f;
  }
  for (int i = 0; i < n; ++i) {
    y[row * n + i] = static_cast<T>(sum1);
  }
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<(rows + 127) / 128, 128, 0, stream>>>(x, y, rows, n);
}
