// vectorize cache_row_in_registers
// timed 4096 4096
#include <stdint.h>

__global__ void first_kernel(float* __restrict__ v, int64_t rows, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += gridDim.x * blockDim.x) {
    const float in1 = v[i];
    v[i] = in1 * 0.5f;
  }
}

__global__ void second_kernel(const float* __restrict__ w, float* __restrict__ y, float* __restrict__ v, int64_t rows, int64_t n) {
  const int64_t row = blockIdx.x;
  const int64_t base = row * n;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    float old2 = v[base + c];
    y[base + c] = fminf(0.5f, old2);
  }
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const float in6 = w[i];
    y[base + i] = rsqrtf(in6 * in6 + 1.0f);
    v[base + i] += tanhf(1.25f) * (float)(n % 7);
  }
}

extern "C" void fuzz_float32(const float* w, float* y, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<3, 256, 0, stream>>>(v, rows, n);
  second_kernel<<<rows, 256, 0, stream>>>(w, y, v, rows, n);
}
