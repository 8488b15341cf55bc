// inline_device_functions vectorize
// timed 4096 4096
// y is stored as a pack and then read by the lanes that ask for it: they read memory, where the pack was not yet.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ inline float to_float(float v) { return v; }
__device__ inline float to_float(__half v) { return __half2float(v); }
__device__ inline float to_float(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename V>
__device__ inline void put(V* to, int64_t at, const float value) { to[at] = static_cast<V>(value); }

template <bool kFlag>
__global__ void first_kernel(const float* s, __half* y, __half* v, int rows, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  int rest = i;
  const int column = rest % n;
  rest /= n;
  const int row = rest;
  const float in1 = to_float(v[i]);
  const float in2 = s[row];
  float t4 = (fmaxf(in1, in1) * fmaxf(in1, in1));
  float changed_in1 = in1;
  if (in1 > 0.5f) changed_in1 = (in1 * in1);
  if (changed_in1 > 100.0f) changed_in1 = 100.0f;
  put(y, i, rsqrtf((in1 * in1) * (in1 * in1) + 1.0f));
  put(v, i, (in1 > 0.0f ? to_float(y[i]) : in1));
}

extern "C" void fuzz_float16(const float* s, __half* y, __half* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<true><<<(rows * n + 127) / 128, 128, 0, stream>>>(s, y, v, rows, n);
}
