// canonicalize_reductions
// timed 4096 4096
// What is handed an element does not fill the slots, although the tree calls it too.
#include <cuda_runtime.h>
#include <stdint.h>

__global__ void first_kernel(const float* __restrict__ x, float* __restrict__ out, int rows, int n) {
  const int row = blockIdx.x;
  float top = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    top = fmaxf(top, x[row * n + i]);
  }
  __shared__ float partial[128];
  partial[threadIdx.x] = top;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) partial[threadIdx.x] = fmaxf(partial[threadIdx.x], partial[threadIdx.x + s]);
    __syncthreads();
  }
  if (threadIdx.x == 0) out[row] = fmaxf(partial[0], 0.5f);
}

extern "C" void fuzz_float32(const float* x, float* out, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, out, rows, n);
}
