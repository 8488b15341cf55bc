// canonicalize_reductions
// timed 32 32768 even aligned
#include <cuda_fp16.h>

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

__global__ void first_kernel(const __half* __restrict__ x, __half* __restrict__ v, int rows, int n) {
  const int row = blockIdx.x;
  float sum1 = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum1 = sum1 + static_cast<float>(x[row * n + i]);
  const float total5 = block_sum(sum1);
  for (int c = threadIdx.x; c < n; c += blockDim.x) {
    const auto in10 = static_cast<float>(x[row * n + c]);
    v[row * n + c] = static_cast<__half>(__expf(-fabsf(in10)));
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
    __half2 pack = reinterpret_cast<const __half2*>(&x[row * n + 0])[i];
    pack.x = __float2half((total5 / (1.0f + fabsf(1.25f))));
    pack.y = __float2half((total5 / (1.0f + fabsf(1.25f))));
    reinterpret_cast<__half2*>(&v[row * n + 0])[i] = pack;
  }
}

extern "C" void fuzz_float16(const __half* x, __half* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, v, rows, n);
}
