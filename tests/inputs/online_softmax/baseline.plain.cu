// The safe softmax of one pass and one more: a struct of a maximum and a sum, joined by one function in registers, in
// warps and over the block.
#include <cuda_fp16.h>
#include <float.h>
#include <stdint.h>

struct __align__(8) MD {
  float m;
  float d;
};

__device__ __forceinline__ MD reduce_md_op(MD a, MD b) {
  bool a_bigger = (a.m > b.m);
  MD bigger_m = a_bigger ? a : b;
  MD smaller_m = a_bigger ? b : a;
  MD res;
  res.d = bigger_m.d + smaller_m.d * __expf(smaller_m.m - bigger_m.m);
  res.m = bigger_m.m;
  return res;
}

__device__ __forceinline__ MD warp_reduce_md(MD md) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) {
    MD other;
    other.m = __shfl_xor_sync(0xffffffff, md.m, mask);
    other.d = __shfl_xor_sync(0xffffffff, md.d, mask);
    md = reduce_md_op(md, other);
  }
  return md;
}

template <typename T>
__global__ void online_softmax_kernel(const T* __restrict x, T* __restrict y, int V) {
  __shared__ MD warp_md[32];
  __shared__ MD md_total;
  const int lane = threadIdx.x & 31;
  const int warp = threadIdx.x >> 5;
  x += blockIdx.x * (int64_t)V;
  y += blockIdx.x * (int64_t)V;

  MD md_partial;
  md_partial.m = -FLT_MAX;
  md_partial.d = 0.0F;
  for (int elem_id = threadIdx.x; elem_id < V; elem_id += blockDim.x) {
    MD new_elem;
    new_elem.m = (float)x[elem_id];
    new_elem.d = 1.0F;
    md_partial = reduce_md_op(md_partial, new_elem);
  }

  md_partial = warp_reduce_md(md_partial);
  if (lane == 0) warp_md[warp] = md_partial;
  __syncthreads();
  if (warp == 0) {
    MD none = {-FLT_MAX, 0.0F};
    MD md = lane < (blockDim.x >> 5) ? warp_md[lane] : none;
    md = warp_reduce_md(md);
    if (lane == 0) md_total = md;
  }
  __syncthreads();

  float d_total_inverse = __fdividef(1.0F, md_total.d);
  for (int elem_id = threadIdx.x; elem_id < V; elem_id += blockDim.x) {
    y[elem_id] = (T)(__expf((float)x[elem_id] - md_total.m) * d_total_inverse);
  }
}

extern "C" void online_softmax_float32(const float* x, float* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  online_softmax_kernel<float><<<rows, 256, 0, stream>>>(x, y, (int)columns);
}
extern "C" void online_softmax_float16(const __half* x, __half* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  online_softmax_kernel<__half><<<rows, 256, 0, stream>>>(x, y, (int)columns);
}
