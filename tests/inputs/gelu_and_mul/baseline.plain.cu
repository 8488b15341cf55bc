// One thread an element of the output, rows and columns from a division.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__device__ float load(T value) { return static_cast<float>(value); }

template <typename T>
__global__ void gelu_and_mul_kernel(const T* __restrict__ input, T* __restrict__ out, int tokens, int hidden) {
  const int64_t idx = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (idx >= static_cast<int64_t>(tokens) * hidden) return;
  const int64_t row = idx / hidden;
  const int64_t col = idx % hidden;
  const float x = load(input[row * 2 * hidden + col]);
  const float y = load(input[row * 2 * hidden + hidden + col]);
  const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);
  const float gelu = 0.5f * x * (1.0f + tanhf(inner));
  out[idx] = static_cast<T>(gelu * y);
}

template <typename T>
void run(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
  const int threads = 256;
  const int64_t total = tokens * hidden;
  const int blocks = static_cast<int>((total + threads - 1) / threads);
  gelu_and_mul_kernel<T><<<blocks, threads, 0, stream>>>(input, out, static_cast<int>(tokens), static_cast<int>(hidden));
}

#define ENTRY(NAME, T)                                                                                        \
  extern "C" void gelu_and_mul_##NAME(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) { \
    run<T>(input, out, tokens, hidden, stream);                                                               \
  }
ENTRY(float16, __half)
ENTRY(bfloat16, __nv_bfloat16)
