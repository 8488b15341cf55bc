// One block a row; mean, then variance, then the output, each a pass over memory; two trees in shared memory.
#include <cuda_fp16.h>
#include <stdint.h>

#define THREADS 256

__device__ inline float as_float(float v) { return v; }
__device__ inline float as_float(__half v) { return __half2float(v); }
__device__ inline void put(float& to, float v) { to = v; }
__device__ inline void put(__half& to, float v) { to = __float2half(v); }

template <typename scalar_t>
__global__ void layer_norm_kernel(const scalar_t* x, const scalar_t* weight, const scalar_t* bias, scalar_t* y,
                                  int columns, float eps) {
  __shared__ float buffer[THREADS];
  int row = blockIdx.x;
  int tid = threadIdx.x;

  float sum = 0.0f;
  for (int c = tid; c < columns; c += blockDim.x) {
    sum += as_float(x[(size_t)row * columns + c]);
  }
  buffer[tid] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) buffer[tid] += buffer[tid + s];
    __syncthreads();
  }
  float mean = buffer[0] / columns;
  __syncthreads();

  float squares = 0.0f;
  for (int c = tid; c < columns; c += blockDim.x) {
    float d = as_float(x[(size_t)row * columns + c]) - mean;
    squares += d * d;
  }
  buffer[tid] = squares;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (tid < s) buffer[tid] += buffer[tid + s];
    __syncthreads();
  }
  float inv_std = 1.0f / sqrtf(buffer[0] / columns + eps);

  for (int c = tid; c < columns; c += blockDim.x) {
    float v = (as_float(x[(size_t)row * columns + c]) - mean) * inv_std;
    y[(size_t)row * columns + c] = static_cast<scalar_t>(v * as_float(weight[c]) + as_float(bias[c]));
  }
}

extern "C" void layer_norm_float16(const __half* x, const __half* weight, const __half* bias, __half* y, int64_t rows,
                                   int64_t columns, float eps, cudaStream_t stream) {
  layer_norm_kernel<__half><<<rows, THREADS, 0, stream>>>(x, weight, bias, y, columns, eps);
}

extern "C" void layer_norm_float32(const float* x, const float* weight, const float* bias, float* y, int64_t rows,
                                   int64_t columns, float eps, cudaStream_t stream) {
  layer_norm_kernel<float><<<rows, THREADS, 0, stream>>>(x, weight, bias, y, columns, eps);
}
