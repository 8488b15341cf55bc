// vectorize cache_row_in_registers
// timed 4096 4096
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__half v) { return __half2float(v); }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__global__ void first_kernel(T* __restrict__ v, int64_t rows, int64_t n) {
  for (int64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * n; i += gridDim.x * blockDim.x) {
  const int64_t row = i / n;
  const int64_t column = i % n;
  const float in1 = to_float(v[i]);
  float t2 = ((in1 * 1.25f) * tanhf(in1));
  float t3 = fminf((in1 > 0.0f ? 0.5f : 1.25f), (1.25f + in1));
  if (in1 > 0.25f) t3 = rsqrtf(0.5f * 0.5f + 1.0f);
  v[i] = static_cast<T>(((t2 * 0.5f) + rsqrtf(in1 * in1 + 1.0f)));
  }
}

__global__ void second_kernel(const float* __restrict__ w, const float* __restrict__ s, float* __restrict__ y, float* __restrict__ v, int64_t rows, int64_t n) {
  const int64_t row = blockIdx.x;
  const int64_t base = row * n;
  for (int64_t c = threadIdx.x; c < n; c += blockDim.x) {
    float old2 = to_float(v[base + c]);
    { y[base + c] = fminf(0.5f, old2); }
  }
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    float in5 = s[row];
    const float in6 = to_float(w[i]);
    float t8 = max((float)((in6 * in5)), (float)((in6 / (1.0f + fabsf(0.5f)))));
    const float t9 = tanhf((0.5f - t8));
    y[base + i] = rsqrtf((in5 * t8) * (in5 * t8) + 1.0f);
    v[base + i] += (tanhf(1.25f) * (float)(n % 7));
  }
  __syncthreads();
}

extern "C" void fuzz_float32(const float* w, const float* s, float* y, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  const int threads0 = 256;
  first_kernel<float><<<3, threads0, 0, stream>>>(v, rows, n);
  second_kernel<<<rows, 256, 0, stream>>>(w, s, y, v, rows, n);
}
