// A serving engine's style: a namespace, a macro for loads, a helper that reduces by warp shuffles, options as template
// parameters, pointers that move to their row, streaming stores, a launch shape that is set in two steps.
#include <cuda_fp16.h>
#include <stdint.h>
#include <algorithm>

#define READ_ONLY(pointer) __ldg(pointer)
typedef __half element_t;

namespace engine {

template <typename V>
static __device__ __inline__ V sum_of_block(V v) {
  static __shared__ V by_warp[32];
  const int lane = threadIdx.x & 0x1f, warp = threadIdx.x >> 5;
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffff, v, mask, 32);
  if (lane == 0) by_warp[warp] = v;
  __syncthreads();
  v = lane < blockDim.x / 32 ? by_warp[lane] : (V)0.0f;
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) v += __shfl_xor_sync(0xffffffff, v, mask, 32);
  return v;
}

template <int max_threads, bool with_weight, bool with_bias = false>
static __global__ void scaled_rms_norm_kernel(const element_t* in, element_t* out, const element_t* __restrict weight,
                                              const int hidden, const float eps, const element_t* bias = nullptr) {
  const int tid = threadIdx.x;
  in += (int64_t)blockIdx.x * hidden;
  out = out + (int64_t)blockIdx.x * hidden;
  __shared__ float scale;
  float squares = 0.0f;
  for (int i = tid; i < hidden; i += blockDim.x) {
    const float v = (float)READ_ONLY(&in[i]);
    squares += v * v;
  }
  if constexpr (max_threads > 32) {
    squares = sum_of_block<float>(squares);
  }
  if (tid == 0) {
    scale = rsqrtf(squares / hidden + eps);
  }
  __syncthreads();
  for (int i = tid; i < hidden; i += blockDim.x) {
    const float v = (float)READ_ONLY(&in[i]);
    if constexpr (with_weight && with_bias) {
      __stcs(out + i, (element_t)(v * scale * (float)weight[i] + (float)bias[i]));
    } else if constexpr (with_weight) {
      __stcs(out + i, (element_t)(v * scale * (float)weight[i]));
    } else {
      __stcs(out + i, (element_t)(v * scale));
    }
  }
}

}  // namespace engine

extern "C" void scaled_rms_norm_float16(const __half* in, const __half* weight, __half* out, int64_t tokens, int64_t hidden,
                                        float eps, cudaStream_t stream) {
  const int width = hidden;
  dim3 grid(tokens);
  dim3 block(std::min(width, 1024));
  if (width % 32 != 0) {
    block.x = 1024;
  }
  engine::scaled_rms_norm_kernel<1024, true><<<grid, block, 0, stream>>>(in, out, weight, width, eps, nullptr);
}
