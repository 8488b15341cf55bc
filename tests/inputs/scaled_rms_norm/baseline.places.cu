// Loops over a row's places in the whole tensor, and a tree of a fixed width.
#include <cuda_fp16.h>
#include <stdint.h>

__global__ void scaled_rms_norm_kernel(const __half* in, const __half* weight, __half* out, int hidden, float eps) {
  __shared__ float partial[256];
  int row = blockIdx.x;
  float sum = 0.0f;
  for (int j = row * hidden + threadIdx.x; j < (row + 1) * hidden; j += blockDim.x) {
    float v = __half2float(in[j]);
    sum += v * v;
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int d = 128; d > 0; d >>= 1) {
    if (threadIdx.x < d) partial[threadIdx.x] += partial[threadIdx.x + d];
    __syncthreads();
  }
  float scale = rsqrtf(partial[0] / hidden + eps);
  for (int j = row * hidden + threadIdx.x; j < (row + 1) * hidden; j += blockDim.x) {
    out[j] = __float2half(__half2float(in[j]) * scale * __half2float(weight[j - row * hidden]));
  }
}

extern "C" void scaled_rms_norm_float16(const __half* in, const __half* weight, __half* out, int64_t tokens, int64_t hidden,
                                        float eps, cudaStream_t stream) {
  scaled_rms_norm_kernel<<<tokens, 256, 0, stream>>>(in, weight, out, hidden, eps);
}
