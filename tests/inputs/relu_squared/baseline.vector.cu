// One thread 16 bytes, a tail element by element.
#include <cuda_bf16.h>
#include <stdint.h>

template <typename T, int N>
struct alignas(sizeof(T) * N) Chunk { T item[N]; };

template <typename T, int N>
__global__ void relu_squared_chunks(const Chunk<T, N>* __restrict__ x, Chunk<T, N>* __restrict__ y, int64_t chunks) {
  const int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= chunks) return;
  Chunk<T, N> c = x[i];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float v = fmaxf((float)c.item[k], 0.0f);
    c.item[k] = (T)(v * v);
  }
  y[i] = c;
}

template <typename T>
__global__ void relu_squared_rest(const T* __restrict__ x, T* __restrict__ y, int64_t from, int64_t n) {
  const int64_t i = from + threadIdx.x;
  if (i < n) {
    const float v = fmaxf((float)x[i], 0.0f);
    y[i] = (T)(v * v);
  }
}

template <typename T>
void launch(const T* x, T* y, int64_t n, cudaStream_t stream) {
  constexpr int N = 16 / sizeof(T);
  const int64_t chunks = n / N;
  if (chunks > 0) {
    relu_squared_chunks<T, N><<<(chunks + 127) / 128, 128, 0, stream>>>(reinterpret_cast<const Chunk<T, N>*>(x), reinterpret_cast<Chunk<T, N>*>(y), chunks);
  }
  if (chunks * N < n) relu_squared_rest<T><<<1, 32, 0, stream>>>(x, y, chunks * N, n);
}

extern "C" void relu_squared_float32(const float* x, float* y, int64_t elements, cudaStream_t stream) { launch<float>(x, y, elements, stream); }
extern "C" void relu_squared_bfloat16(const __nv_bfloat16* x, __nv_bfloat16* y, int64_t elements, cudaStream_t stream) { launch<__nv_bfloat16>(x, y, elements, stream); }
