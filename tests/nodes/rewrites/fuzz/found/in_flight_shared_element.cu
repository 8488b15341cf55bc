// load_pipelining
// timed 4096 4096
// All steps of a thread change one element: none may read it before the one in front has written.
#include <stdint.h>

__global__ void first_kernel(const float* x, float* v, int rows, int n) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float so_far = v[row * n + threadIdx.x];
    v[row * n + threadIdx.x] = so_far + x[row * n + i];
  }
}

extern "C" void fuzz_float32(const float* x, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, v, rows, n);
}
