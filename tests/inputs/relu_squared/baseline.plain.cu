// A grid-stride loop over at most 1024 blocks.
#include <cuda_bf16.h>
#include <stdint.h>

template <typename T>
__global__ void relu_squared_kernel(const T* x, T* y, int64_t n) {
  int64_t start = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  for (int64_t i = start; i < n; i += (int64_t)gridDim.x * blockDim.x) {
    float v = (float)x[i];
    if (v < 0.0) v = 0.0;
    y[i] = (T)(v * v);
  }
}

template <typename T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) {
  int64_t blocks = (n + 255) / 256;
  if (blocks > 1024) blocks = 1024;
  relu_squared_kernel<T><<<(unsigned)blocks, 256, 0, stream>>>(x, y, n);
}

extern "C" void relu_squared_float32(const float* x, float* y, int64_t elements, cudaStream_t stream) { launch<float>(x, y, elements, stream); }
extern "C" void relu_squared_bfloat16(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t elements, cudaStream_t stream) { launch<__nv_bfloat16>(x, y, elements, stream); }
