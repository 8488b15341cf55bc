// Each thread takes four elements, a block's width apart.
#include <cuda_bf16.h>
#include <stdint.h>

#define PER_THREAD 4

template <typename T>
__global__ void relu_squared_kernel(const T* x, T* y, int64_t n) {
  const int64_t base = (int64_t)blockIdx.x * blockDim.x * PER_THREAD + threadIdx.x;
#pragma unroll
  for (int k = 0; k < PER_THREAD; ++k) {
    const int64_t i = base + k * blockDim.x;
    if (i < n) {
      const float v = fmaxf((float)x[i], 0.0f);
      y[i] = (T)(v * v);
    }
  }
}

extern "C" void relu_squared_float32(const float* x, float* y, int64_t elements, cudaStream_t stream) {
  relu_squared_kernel<float><<<(elements + 1023) / 1024, 256, 0, stream>>>(x, y, elements);
}

extern "C" void relu_squared_bfloat16(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t elements, cudaStream_t stream) {
  relu_squared_kernel<__nv_bfloat16><<<(elements + 1023) / 1024, 256, 0, stream>>>(x, y, elements);
}
