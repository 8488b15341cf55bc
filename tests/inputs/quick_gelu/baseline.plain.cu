// vLLM's way: an activation as a template argument, one block a token.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>
#include <algorithm>

namespace act {

template <typename T>
__device__ __forceinline__ T quick_gelu(const T& x) {
  // x * sigmoid(1.702 * x)
  return (T)(((float)x) / (1.0f + expf(-1.702f * (float)x)));
}

template <typename scalar_t, scalar_t (*ACT_FN)(const scalar_t&)>
__global__ void activation_kernel(
    scalar_t* __restrict__ out,          // [..., d]
    const scalar_t* __restrict__ input,  // [..., d]
    const int d) {
  const int64_t token_idx = blockIdx.x;
  for (int64_t idx = threadIdx.x; idx < d; idx += blockDim.x) {
    const scalar_t x = __ldg(&input[token_idx * d + idx]);
    out[token_idx * d + idx] = ACT_FN(x);
  }
}

}  // namespace act

#define LAUNCH_ACTIVATION_KERNEL(NAME, TYPE, KERNEL)                                             \
  extern "C" void NAME(TYPE* out, const TYPE* input, int64_t num_tokens, int64_t d,               \
                       cudaStream_t stream) {                                                    \
    dim3 grid(num_tokens);                                                                       \
    dim3 block(std::min<int64_t>(d, 1024));                                                      \
    act::activation_kernel<TYPE, KERNEL<TYPE>><<<grid, block, 0, stream>>>(out, input, d);       \
  }

LAUNCH_ACTIVATION_KERNEL(quick_gelu_float16, __half, act::quick_gelu)
LAUNCH_ACTIVATION_KERNEL(quick_gelu_bfloat16, __nv_bfloat16, act::quick_gelu)
