// A kernel library's style: a vector type with methods, dynamic shared memory that says what it is aligned to, a kernel
// that is chosen into a variable.
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T, int N>
struct alignas(sizeof(T) * N) vec_t {
  T data[N];
  __device__ T& operator[](int i) { return data[i]; }
  __device__ void load(const T* ptr) { *this = *reinterpret_cast<const vec_t*>(ptr); }
  __device__ void store(T* ptr) { *reinterpret_cast<vec_t*>(ptr) = *this; }
};

template <typename T, int N>
__global__ void scaled_rms_norm_kernel(const T* in, const T* weight, T* out, int hidden, float eps) {
  extern __shared__ __align__(16) float smem[];
  const int row = blockIdx.x;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < hidden / N; i += blockDim.x) {
    vec_t<T, N> x;
    x.load(in + (int64_t)row * hidden + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      sum += float(x[k]) * float(x[k]);
    }
  }
  smem[threadIdx.x] = sum;
  __syncthreads();
  for (int d = blockDim.x / 2; d > 0; d >>= 1) {
    if (threadIdx.x < d) smem[threadIdx.x] += smem[threadIdx.x + d];
    __syncthreads();
  }
  const float scale = rsqrtf(smem[0] / hidden + eps);
  for (int i = threadIdx.x; i < hidden / N; i += blockDim.x) {
    vec_t<T, N> x;
    vec_t<T, N> w;
    x.load(in + (int64_t)row * hidden + i * N);
    w.load(weight + i * N);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      x[k] = T(float(x[k]) * scale * float(w[k]));
    }
    x.store(out + (int64_t)row * hidden + i * N);
  }
}

extern "C" void scaled_rms_norm_float16(const __half* in, const __half* weight, __half* out, int64_t tokens, int64_t hidden,
                                        float eps, cudaStream_t stream) {
  const int bytes = 256 * sizeof(float);
  const bool aligned = ((uintptr_t)in | (uintptr_t)weight | (uintptr_t)out) % 16 == 0;
  if (hidden % 8 == 0 && aligned) {
    auto kernel = scaled_rms_norm_kernel<__half, 8>;
    kernel<<<tokens, 256, bytes, stream>>>(in, weight, out, hidden, eps);
  } else {
    auto kernel = scaled_rms_norm_kernel<__half, 1>;
    kernel<<<tokens, 256, bytes, stream>>>(in, weight, out, hidden, eps);
  }
}
