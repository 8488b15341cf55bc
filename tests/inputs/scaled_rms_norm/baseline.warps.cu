// A training code's style: cooperative groups, a warp a row, eight rows a block.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace cg = cooperative_groups;

__global__ void scaled_rms_norm_kernel(const __half* in, const __half* weight, __half* out, int tokens, int hidden, float eps) {
  cg::thread_block block = cg::this_thread_block();
  cg::thread_block_tile<32> warp = cg::tiled_partition<32>(block);
  int idx = blockIdx.x * warp.meta_group_size() + warp.meta_group_rank();
  if (idx >= tokens) {
    return;
  }
  const __half* x = in + (int64_t)idx * hidden;
  __half* o = out + (int64_t)idx * hidden;

  float sum = 0.0f;
  for (int i = warp.thread_rank(); i < hidden; i += warp.size()) {
    float v = __half2float(x[i]);
    sum += v * v;
  }
  sum = cg::reduce(warp, sum, cg::plus<float>{});
  float scale = rsqrtf(sum / hidden + eps);

  for (int i = warp.thread_rank(); i < hidden; i += warp.size()) {
    o[i] = __float2half(__half2float(x[i]) * scale * __half2float(weight[i]));
  }
}

extern "C" void scaled_rms_norm_float16(const __half* in, const __half* weight, __half* out, int64_t tokens, int64_t hidden,
                                        float eps, cudaStream_t stream) {
  scaled_rms_norm_kernel<<<(tokens + 7) / 8, 256, 0, stream>>>(in, weight, out, tokens, hidden, eps);
}
