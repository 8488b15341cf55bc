// One thread an element, its token and group from divisions.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void rescale_groups_kernel(
    const T* x, const float* scale, T* out, int64_t tokens, int64_t groups, int64_t size) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= tokens * groups * size) return;
  const int64_t token = i / (groups * size);
  const int64_t group = i / size % groups;
  out[i] = static_cast<T>(static_cast<float>(x[i]) * scale[group * tokens + token]);
}

template <typename T>
void rescale(
    const T* x, const float* scale, T* out, int64_t tokens, int64_t groups, int64_t size, cudaStream_t stream) {
  const int64_t n = tokens * groups * size;
  rescale_groups_kernel<T><<<(n + 255) / 256, 256, 0, stream>>>(x, scale, out, tokens, groups, size);
}

extern "C" void rescale_groups_float16(
    const __half* x, const float* scale, __half* out, int64_t tokens, int64_t groups, int64_t size,
    cudaStream_t stream) {
  rescale(x, scale, out, tokens, groups, size, stream);
}

extern "C" void rescale_groups_bfloat16(
    const __nv_bfloat16* x, const float* scale, __nv_bfloat16* out, int64_t tokens, int64_t groups, int64_t size,
    cudaStream_t stream) {
  rescale(x, scale, out, tokens, groups, size, stream);
}
