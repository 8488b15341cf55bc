// One block a token, 16 bytes a thread and step through uint4.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ float gelu_tanh(float x) {
  return 0.5f * x * (1.0f + tanhf(0.7978845608f * (x + 0.044715f * x * x * x)));
}

template <typename T>
__global__ void gelu_and_mul_vector(T* __restrict__ out, const T* __restrict__ input, int hidden) {
  const int token = blockIdx.x;
  const uint4* gate = reinterpret_cast<const uint4*>(input + static_cast<int64_t>(token) * 2 * hidden);
  const uint4* up = reinterpret_cast<const uint4*>(input + static_cast<int64_t>(token) * 2 * hidden + hidden);
  uint4* dst = reinterpret_cast<uint4*>(out + static_cast<int64_t>(token) * hidden);
  for (int i = threadIdx.x; i < hidden / 8; i += blockDim.x) {
    uint4 a = __ldg(gate + i);
    uint4 b = __ldg(up + i);
    T* x = reinterpret_cast<T*>(&a);
    const T* y = reinterpret_cast<const T*>(&b);
#pragma unroll
    for (int k = 0; k < 8; ++k) x[k] = static_cast<T>(gelu_tanh(static_cast<float>(x[k])) * static_cast<float>(y[k]));
    dst[i] = a;
  }
}

template <typename T>
__global__ void gelu_and_mul_scalar(T* out, const T* input, int hidden) {
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    const float x = static_cast<float>(input[static_cast<int64_t>(blockIdx.x) * 2 * hidden + i]);
    const float y = static_cast<float>(input[static_cast<int64_t>(blockIdx.x) * 2 * hidden + hidden + i]);
    out[static_cast<int64_t>(blockIdx.x) * hidden + i] = static_cast<T>(gelu_tanh(x) * y);
  }
}

template <typename T>
void run(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
  if (hidden % 8 == 0 && (reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out)) % 16 == 0) {
    gelu_and_mul_vector<T><<<tokens, hidden / 8 < 1024 ? hidden / 8 : 1024, 0, stream>>>(out, input, hidden);
  } else {
    gelu_and_mul_scalar<T><<<tokens, 256, 0, stream>>>(out, input, hidden);
  }
}

extern "C" void gelu_and_mul_float16(const __half* input, __half* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
  run(input, out, tokens, hidden, stream);
}
extern "C" void gelu_and_mul_bfloat16(const __nv_bfloat16* input, __nv_bfloat16* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
  run(input, out, tokens, hidden, stream);
}
