// Attention scores in the form of FasterTransformer: a block each row, its share of the row in an array.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

__inline__ __device__ float warpReduceSum(float val) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) val += __shfl_xor_sync(0xffffffff, val, mask, 32);
  return val;
}
__inline__ __device__ float blockReduceSum(float val) {
  static __shared__ float shared[32];
  int lane = threadIdx.x & 0x1f;
  int wid = threadIdx.x >> 5;
  val = warpReduceSum(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < (blockDim.x / 32.f)) ? shared[lane] : 0.0f;
  return warpReduceSum(val);
}
__inline__ __device__ float warpReduceMax(float val) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) val = max(val, __shfl_xor_sync(0xffffffff, val, mask, 32));
  return val;
}
__inline__ __device__ float blockReduceMax(float val) {
  static __shared__ float shared[32];
  int lane = threadIdx.x & 0x1f;
  int wid = threadIdx.x >> 5;
  val = warpReduceMax(val);
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = (threadIdx.x < (blockDim.x / 32.f)) ? shared[lane] : -1e20f;
  return warpReduceMax(val);
}

template <typename T, int ITEMS_PER_THREAD>
__global__ void items_softmax_kernel(T* attn, const T* scores, const int length) {
  float data[ITEMS_PER_THREAD];
  const int64_t offset = static_cast<int64_t>(blockIdx.x) * length;
  __shared__ float s_mean, s_max;
  float local_max = -1e20f;
  for (int i = 0; blockDim.x * i + threadIdx.x < length; i++) {
    data[i] = static_cast<float>(scores[offset + blockDim.x * i + threadIdx.x]);
    local_max = fmaxf(local_max, data[i]);
  }
  float max_val = blockDim.x <= 32 ? warpReduceMax(local_max) : blockReduceMax(local_max);
  if (threadIdx.x == 0) s_max = max_val;
  __syncthreads();
  float local_sum = 0.0f;
  for (int i = 0; blockDim.x * i + threadIdx.x < length; i++) {
    data[i] = __expf(data[i] - s_max);
    local_sum += data[i];
  }
  float sum_val = blockDim.x <= 32 ? warpReduceSum(local_sum) : blockReduceSum(local_sum);
  if (threadIdx.x == 0) s_mean = 1.0f / (sum_val);
  __syncthreads();
  for (int i = 0; blockDim.x * i + threadIdx.x < length; i++) {
    attn[offset + blockDim.x * i + threadIdx.x] = static_cast<T>(data[i] * s_mean);
  }
}

template <typename T>
void run(const T* x, T* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  if (columns <= 1024) {
    items_softmax_kernel<T, 4><<<rows, 256, 0, stream>>>(y, x, columns);
  } else {
    items_softmax_kernel<T, 16><<<rows, 512, 0, stream>>>(y, x, columns);
  }
}
extern "C" void short_softmax_float16(const __half* x, __half* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, y, rows, columns, stream);
}
extern "C" void short_softmax_float32(const float* x, float* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, y, rows, columns, stream);
}
