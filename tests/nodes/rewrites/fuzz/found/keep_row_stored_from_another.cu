// cache_row_in_registers
// timed 4096 4096 even aligned
// What a loop stores in v is the variable that it loaded from x: v had a register in which nothing was put.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

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

__device__ float block_sum(float value) {
  __shared__ float slots[32];
  for (int offset = 16; offset > 0; offset /= 2) value = value + __shfl_xor_sync(0xffffffff, value, offset);
  __syncthreads();
  if (threadIdx.x % 32 == 0) slots[threadIdx.x / 32] = value;
  __syncthreads();
  value = slots[0];
  for (int warp = 1; warp < blockDim.x / 32; ++warp) value = value + slots[warp];
  return value;
}

template <bool kFlag>
__global__ void first_kernel(const float* x, float* y, float* v, int rows, int n) {
  const int row = blockIdx.x;
  __syncthreads();
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
    float4 pack = reinterpret_cast<const float4*>(&x[row * n + 0])[i];
    pack.x = (float)pack.x;
    pack.y = (float)pack.y;
    pack.z = (float)pack.z;
    pack.w = (float)pack.w;
    reinterpret_cast<float4*>(&v[row * n + 0])[i] = pack;
  }
  __syncthreads();
  float top1 = -INFINITY;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    top1 = fmaxf(top1, x[row * n + i]);
  }
  top1 = block_top(top1);
  float total2 = 0.0f;
  #pragma unroll
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float e = expf(x[row * n + i] - top1);
    total2 += e;
    y[row * n + i] = e;
  }
  total2 = block_sum(total2);
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    y[row * n + i] = y[row * n + i] / total2;
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float in4 = x[row * n + i];
    y[row * n + i] = (in4 - in4);
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n / 4; i += blockDim.x) {
    float4 pack = reinterpret_cast<float4*>(&v[row * n + 0])[i];
    pack.x = (float)pack.x;
    pack.y = (float)pack.y;
    pack.z = (float)pack.z;
    pack.w = (float)pack.w;
    reinterpret_cast<float4*>(&y[row * n + 0])[i] = pack;
  }
  __syncthreads();
}

extern "C" void fuzz_float32(const float* x, float* y, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<false><<<rows, 128, 0, stream>>>(x, y, v, rows, n);
}
