// One warp a head: norm, scale and rotation of neighbours by angles of a table; every step in a small device function.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace common {

template <typename T>
__device__ __forceinline__ float cast(T v);
template <>
__device__ __forceinline__ float cast<__half>(__half v) { return __half2float(v); }
template <>
__device__ __forceinline__ float cast<__nv_bfloat16>(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename T>
__device__ __forceinline__ T warpReduceSum(T val) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) val += __shfl_xor_sync(0xffffffff, val, mask, 32);
  return val;
}

}  // namespace common

template <typename T>
__device__ __forceinline__ void loadPair(float (&to)[2], T const* from, int pair) {
  to[0] = common::cast<T>(from[2 * pair]);
  to[1] = common::cast<T>(from[2 * pair + 1]);
}

template <typename T>
__device__ __forceinline__ void storePair(T* to, int pair, float (&from)[2]) {
  to[2 * pair] = static_cast<T>(from[0]);
  to[2 * pair + 1] = static_cast<T>(from[1]);
}

__device__ __forceinline__ void scalePair(float (&x)[2], float factor, float const (&weight)[2]) {
  x[0] = x[0] * factor * weight[0];
  x[1] = x[1] * factor * weight[1];
}

__device__ __forceinline__ void rotatePair(float (&x)[2], float cos, float sin) {
  float const first = x[0] * cos - x[1] * sin;
  x[1] = x[1] * cos + x[0] * sin;
  x[0] = first;
}

template <typename T>
__global__ void headNormRopeKernel(T* __restrict__ qk, T const* __restrict__ weight, float const* __restrict__ cosTable,
                                   float const* __restrict__ sinTable, int const* __restrict__ positions,
                                   int const numTokens, int const numHeads, int const headDim, float const eps) {
  int const warpsPerBlock = blockDim.x / 32;
  int const warpId = threadIdx.x / 32;
  int const laneId = threadIdx.x % 32;
  int const globalWarpIdx = blockIdx.x * warpsPerBlock + warpId;
  int const tokenIdx = globalWarpIdx / numHeads;
  if (tokenIdx >= numTokens) return;
  int const numPairs = headDim / 2;
  T* head = qk + static_cast<int64_t>(globalWarpIdx) * headDim;

  float sumOfSquares = 0.0f;
  for (int pair = laneId; pair < numPairs; pair += 32) {
    float x[2];
    loadPair(x, head, pair);
    sumOfSquares += x[0] * x[0] + x[1] * x[1];
  }
  sumOfSquares = common::warpReduceSum(sumOfSquares);
  float const rmsRcp = rsqrtf(sumOfSquares / static_cast<float>(headDim) + eps);

  int64_t const table = static_cast<int64_t>(positions[tokenIdx]) * numPairs;
  for (int pair = laneId; pair < numPairs; pair += 32) {
    float x[2], w[2];
    loadPair(x, head, pair);
    loadPair(w, weight, pair);
    scalePair(x, rmsRcp, w);
    rotatePair(x, cosTable[table + pair], sinTable[table + pair]);
    storePair(head, pair, x);
  }
}

template <typename T>
void invoke(T* qk, T const* weight, float const* cosTable, float const* sinTable, int const* positions, int64_t tokens,
            int64_t heads, int64_t headDim, float eps, cudaStream_t stream) {
  constexpr int blockSize = 256;
  constexpr int warpsPerBlock = blockSize / 32;
  int const totalWarps = tokens * heads;
  dim3 const grid((totalWarps + warpsPerBlock - 1) / warpsPerBlock);
  headNormRopeKernel<T><<<grid, blockSize, 0, stream>>>(qk, weight, cosTable, sinTable, positions, tokens, heads, headDim, eps);
}

extern "C" void head_norm_rope_float16(__half* qk, __half const* weight, float const* cosTable, float const* sinTable,
                                       int const* positions, int64_t tokens, int64_t heads, int64_t headDim, float eps,
                                       cudaStream_t stream) {
  invoke(qk, weight, cosTable, sinTable, positions, tokens, heads, headDim, eps, stream);
}
extern "C" void head_norm_rope_bfloat16(__nv_bfloat16* qk, __nv_bfloat16 const* weight, float const* cosTable,
                                        float const* sinTable, int const* positions, int64_t tokens, int64_t heads,
                                        int64_t headDim, float eps, cudaStream_t stream) {
  invoke(qk, weight, cosTable, sinTable, positions, tokens, heads, headDim, eps, stream);
}
