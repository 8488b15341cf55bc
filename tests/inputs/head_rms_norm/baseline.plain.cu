// One warp a head, eight warps a block; QK-norm as serving engines write it.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define WARP_SIZE 32

template <typename T> __device__ inline float as_float(T v);
template <> __device__ inline float as_float<__half>(__half v) { return __half2float(v); }
template <> __device__ inline float as_float<__nv_bfloat16>(__nv_bfloat16 v) { return __bfloat162float(v); }
template <typename T> __device__ inline T from_float(float v);
template <> __device__ inline __half from_float<__half>(float v) { return __float2half(v); }
template <> __device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float v) { return __float2bfloat16(v); }

__device__ inline float warpReduceSum(float val) {
#pragma unroll
  for (int offset = WARP_SIZE / 2; offset > 0; offset >>= 1) {
    val += __shfl_xor_sync(0xffffffff, val, offset);
  }
  return val;
}

template <typename T>
__global__ void fusedHeadNormKernel(T* q, T const* weight, int const num_tokens, int const num_heads, int const head_dim, float const eps) {
  int const warpsPerBlock = blockDim.x / WARP_SIZE;
  int const warpId = threadIdx.x / WARP_SIZE;
  int const laneId = threadIdx.x % WARP_SIZE;
  int const globalWarpIdx = blockIdx.x * warpsPerBlock + warpId;
  int const tokenIdx = globalWarpIdx / num_heads;
  int const headIdx = globalWarpIdx % num_heads;
  if (tokenIdx >= num_tokens) return;
  int64_t const base = ((int64_t)tokenIdx * num_heads + headIdx) * head_dim;

  float sumOfSquares = 0.0f;
  for (int i = laneId; i < head_dim; i += WARP_SIZE) {
    float v = as_float<T>(q[base + i]);
    sumOfSquares += v * v;
  }
  sumOfSquares = warpReduceSum(sumOfSquares);
  float const rms_rcp = rsqrtf(sumOfSquares / static_cast<float>(head_dim) + eps);
  for (int i = laneId; i < head_dim; i += WARP_SIZE) {
    float v = as_float<T>(q[base + i]);
    q[base + i] = from_float<T>(v * rms_rcp * as_float<T>(weight[i]));
  }
}

template <typename T>
void run(T* q, T const* weight, int64_t tokens, int64_t heads, int64_t head_dim, float eps, cudaStream_t stream) {
  constexpr int blockSize = 256;
  int const warpsPerBlock = blockSize / 32;
  int const totalWarps = tokens * heads;
  int const gridSize = (totalWarps + warpsPerBlock - 1) / warpsPerBlock;
  dim3 gridDim(gridSize);
  dim3 blockDim(blockSize);
  fusedHeadNormKernel<T><<<gridDim, blockDim, 0, stream>>>(q, weight, tokens, heads, head_dim, eps);
}

extern "C" void head_rms_norm_float16(__half* q, __half const* weight, int64_t tokens, int64_t heads, int64_t head_dim, float eps, cudaStream_t stream) {
  run<__half>(q, weight, tokens, heads, head_dim, eps, stream);
}
extern "C" void head_rms_norm_bfloat16(__nv_bfloat16* q, __nv_bfloat16 const* weight, int64_t tokens, int64_t heads, int64_t head_dim, float eps, cudaStream_t stream) {
  run<__nv_bfloat16>(q, weight, tokens, heads, head_dim, eps, stream);
}
