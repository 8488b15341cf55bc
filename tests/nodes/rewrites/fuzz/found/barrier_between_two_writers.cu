// canonicalize_reductions
// timed 32 32768 even aligned
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ float block_sum(float value) {
  __shared__ float slots[32];
  for (int offset = 16; offset > 0; offset /= 2) value = value + __shfl_xor_sync(0xffffffff, value, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  value = threadIdx.x % 32 < blockDim.x / 32 ? slots[threadIdx.x % 32] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) value = value + __shfl_xor_sync(0xffffffff, value, offset);
  return value;
}

__device__ float block_top(float value) {
  __shared__ float slots[32];
  for (int offset = 16; offset > 0; offset /= 2) value = fmaxf(value, __shfl_xor_sync(0xffffffff, value, offset));
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  value = slots[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) value = fmaxf(value, slots[warp]);
  return value;
}

__global__ void first_kernel(const __half* __restrict__ x, const __half* __restrict__ z, __half* __restrict__ v, int rows, int n) {
  const int row = blockIdx.x;
  float sum1 = 0.0f;
  #pragma unroll 4
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float in3 = static_cast<float>(z[row * n + i]);
    sum1 = sum1 + static_cast<float>(x[row * n + i]);
  }
  const float total5 = block_sum(sum1);
  float top6 = -INFINITY;
  #pragma unroll
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    top6 = fmaxf(top6, static_cast<float>(x[row * n + i]));
  }
  top6 = block_top(top6);
  float total7 = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float e = __expf(static_cast<float>(x[row * n + i]) - top6);
    total7 += e;
  }
  const float total8 = block_sum(total7);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    v[row * n + i] = static_cast<__half>(expf(static_cast<float>(x[row * n + i]) - top6) / total8);
  }
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    const auto in10 = static_cast<float>(x[row * n + c]);
    const float t11 = (rsqrtf(total5 * total5 + 1.0f) * max((float)(1.25f), (float)(0.5f)));
    const float t12 = in10 * 2.0f;
    float t13 = 0.0f;
    if (t12 > 0.0f) {
      const float more_t13 = static_cast<float>(x[row * n + c]);
      t13 = (t11 * 1e-1);
    }
    v[row * n + c] = static_cast<__half>(__expf(-fabsf(in10)));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
    __half2 pack = reinterpret_cast<const __half2*>(&x[row * n + 0])[i];
    pack.x = __float2half((total5 / (1.0f + fabsf(1.25f))));
    pack.y = __float2half((total5 / (1.0f + fabsf(1.25f))));
    reinterpret_cast<__half2*>(&v[row * n + 0])[i] = pack;
  }
  __syncthreads();
}

extern "C" void fuzz_float16(const __half* x, const __half* z, __half* v, int64_t rows, int64_t n, cudaStream_t stream) {
  const int threads0 = 128;
  first_kernel<<<rows, threads0, 0, stream>>>(x, z, v, rows, n);
}
