// Layer norm with blocks of (32, 8): one row a block, its warps counted by threadIdx.y.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ float warp_sum_of(float v) {
#pragma unroll
  for (int offset = 16; offset > 0; offset >>= 1) v += __shfl_xor_sync(0xffffffffu, v, offset);
  return v;
}

__device__ float planar_sum(float v, float* buf) {
  v = warp_sum_of(v);
  if (threadIdx.x == 0) buf[threadIdx.y] = v;
  __syncthreads();
  v = 0.0f;
  for (int w = 0; w < blockDim.y; ++w) v += buf[w];
  __syncthreads();
  return v;
}

template <typename T>
__global__ void planar_layer_norm_kernel(const int N, const float eps, const T* __restrict__ X, const T* __restrict__ gamma,
                                         const T* __restrict__ beta, T* __restrict__ Y) {
  __shared__ float buf[8];
  const int64_t i1 = blockIdx.x;
  const T* block_row = X + i1 * N;
  const int numx = blockDim.x * blockDim.y;
  const int thrx = threadIdx.x + threadIdx.y * blockDim.x;
  float sum = 0.0f;
  for (int i = thrx; i < N; i += numx) sum += static_cast<float>(block_row[i]);
  const float mean = planar_sum(sum, buf) / N;
  float squares = 0.0f;
  for (int i = thrx; i < N; i += numx) {
    const float d = static_cast<float>(block_row[i]) - mean;
    squares += d * d;
  }
  const float rstd = rsqrtf(planar_sum(squares, buf) / N + eps);
  for (int i = thrx; i < N; i += numx) {
    Y[i1 * N + i] = static_cast<T>((static_cast<float>(block_row[i]) - mean) * rstd * static_cast<float>(gamma[i]) +
                                   static_cast<float>(beta[i]));
  }
}

template <typename T>
void run(const T* x, const T* weight, const T* bias, T* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  const dim3 threads(32, 8, 1);
  const dim3 blocks(rows);
  planar_layer_norm_kernel<T><<<blocks, threads, 0, stream>>>(columns, eps, x, weight, bias, y);
}
extern "C" void layer_norm_float16(const __half* x, const __half* weight, const __half* bias, __half* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  run(x, weight, bias, y, rows, columns, eps, stream);
}
extern "C" void layer_norm_float32(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  run(x, weight, bias, y, rows, columns, eps, stream);
}
