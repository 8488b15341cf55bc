// online_reduction
// timed 4096 4096
// What the first thread tells the others was lost with the statements in front of it.
#include <stdint.h>

__global__ void first_kernel(const float* z, float* v, int rows, int n) {
  const int row = blockIdx.x;
  float top = -INFINITY;
  float total = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float e = z[row * n + i];
    const float higher = fmaxf(top, e);
    total = total * expf(top - higher) + expf(e - higher);
    top = higher;
  }
  float copy = top;
  __shared__ float tops[128];
  tops[threadIdx.x] = copy;
  for (int s = 64; s > 0; s /= 2) {
    __syncthreads();
    if (threadIdx.x < s) tops[threadIdx.x] = fmaxf(tops[threadIdx.x], tops[threadIdx.x + s]);
  }
  __syncthreads();
  total = top == -INFINITY ? 0.0f : total * expf(top - tops[0]);
  __shared__ float totals[128];
  totals[threadIdx.x] = total;
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    __syncthreads();
    if (threadIdx.x < s) totals[threadIdx.x] += totals[threadIdx.x + s];
  }
  __syncthreads();
  __shared__ float told;
  if (threadIdx.x == 0) { told = totals[0]; }
  __syncthreads();
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    v[row * n + i] = expf(z[row * n + i] - tops[0]) / told;
  }
}

extern "C" void fuzz_float32(const float* z, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(z, v, rows, n);
}
