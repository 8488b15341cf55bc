// vectorize
// timed 8192 1024
#include <stdint.h>

template <typename V>
__device__ V act(const V& v) { return v * (V)0.5f + (V)1.0f; }

template <bool kFlag>
__global__ void first_kernel(const float* table, const int64_t* index, float* y, int64_t rows, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += gridDim.x * blockDim.x) {
  int64_t rest = i;
  const int64_t column = rest % n;
  rest /= n;
  const int64_t row = rest;
  float in1 = table[index[row] * n + column];
  float changed_in1 = in1;
  if (in1 > 0.5f) changed_in1 = tanhf(0.5f);
  if (changed_in1 > 100.0f) changed_in1 = 100.0f;
  y[i] += fminf(act(1.25f), act(in1));
  }
}

extern "C" void fuzz_float32(const float* table, const int64_t* index, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  dim3 grid0(3);
  dim3 block0(32);
  first_kernel<true><<<grid0, block0, 0, stream>>>(table, index, y, rows, n);
}
