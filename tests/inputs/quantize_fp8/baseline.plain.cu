// One element a thread.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>
#include <stdint.h>

template <typename T>
__global__ void to_fp8(const T* __restrict__ x, const float* __restrict__ scale, __nv_fp8_e4m3* __restrict__ out, size_t n) {
  const size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
  if (i < n) {
    const float v = static_cast<float>(x[i]) * (*scale);
    out[i] = __nv_fp8_e4m3(fminf(fmaxf(v, -448.0f), 448.0f));
  }
}

template <typename T>
void convert(const T* x, const float* scale, void* out, int64_t rows, int64_t columns, cudaStream_t stream) {
  const size_t n = static_cast<size_t>(rows) * columns;
  to_fp8<T><<<(n + 511) / 512, 512, 0, stream>>>(x, scale, static_cast<__nv_fp8_e4m3*>(out), n);
}

extern "C" void quantize_fp8_float16(const __half* x, const float* scale, void* out, int64_t rows, int64_t columns, cudaStream_t stream) {
  convert(x, scale, out, rows, columns, stream);
}
extern "C" void quantize_fp8_bfloat16(const __nv_bfloat16* x, const float* scale, void* out, int64_t rows, int64_t columns, cudaStream_t stream) {
  convert(x, scale, out, rows, columns, stream);
}
