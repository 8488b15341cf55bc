// canonicalize_reductions
// timed 4096 4096
// A tree ends with a barrier, and so must what the first thread leaves in its place.
#include <stdint.h>

__global__ void first_kernel(const float* x, float* y, int rows, int n) {
  __shared__ float partial[128];
  const int row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[row * n + i];
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) partial[threadIdx.x] += partial[threadIdx.x + s];
    __syncthreads();
  }
  const float s = partial[0];
  for (int i = threadIdx.x; i < n; i += blockDim.x) y[row * n + i] = x[row * n + i] * s;
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, y, rows, n);
}
