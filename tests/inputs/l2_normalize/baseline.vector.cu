// One block a row, float4, warp shuffles and one step across the warps; the row is read again for the second pass.
#include <stdint.h>

__device__ inline float warp_sum(float v) {
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_down_sync(0xffffffff, v, offset);
  return v;
}

__global__ void l2_normalize_kernel(const float4* __restrict__ x, float4* __restrict__ y, int columns4, float eps) {
  __shared__ float partial[32];
  __shared__ float total;
  const float4* row = x + (int64_t)blockIdx.x * columns4;
  float4* out = y + (int64_t)blockIdx.x * columns4;
  float sum = 0.0f;
  for (int i = threadIdx.x; i < columns4; i += blockDim.x) {
    const float4 v = row[i];
    sum += v.x * v.x + v.y * v.y + v.z * v.z + v.w * v.w;
  }
  sum = warp_sum(sum);
  if ((threadIdx.x & 31) == 0) partial[threadIdx.x >> 5] = sum;
  __syncthreads();
  if (threadIdx.x < 32) {
    float v = threadIdx.x < blockDim.x / 32 ? partial[threadIdx.x] : 0.0f;
    v = warp_sum(v);
    if (threadIdx.x == 0) total = fmaxf(sqrtf(v), eps);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < columns4; i += blockDim.x) {
    float4 v = row[i];
    v.x /= total;
    v.y /= total;
    v.z /= total;
    v.w /= total;
    out[i] = v;
  }
}

extern "C" void l2_normalize(const float* x, float* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  l2_normalize_kernel<<<rows, 256, 0, stream>>>((const float4*)x, (float4*)y, columns / 4, eps);
}
