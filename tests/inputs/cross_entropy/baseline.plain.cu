// Online softmax by thread, then over the block by shared memory; one thread writes the loss.
#include <cuda_bf16.h>
#include <float.h>
#include <stdint.h>

struct SoftmaxParams {
  float max;
  float sum;
};

template <typename T>
__global__ void cross_entropy_forward(float* losses, const T* logits, const int* targets, int V) {
  __shared__ float maxs[256];
  __shared__ float sums[256];
  const int row = blockIdx.x;
  const int tid = threadIdx.x;
  const T* x = logits + (size_t)row * V;
  SoftmaxParams sp = {-FLT_MAX, 0.0f};
  for (int i = tid; i < V; i += blockDim.x) {
    const float v = (float)x[i];
    const float old = sp.max;
    sp.max = fmaxf(sp.max, v);
    sp.sum = sp.sum * expf(old - sp.max) + expf(v - sp.max);
  }
  maxs[tid] = sp.max;
  sums[tid] = sp.sum;
  __syncthreads();
  for (int stride = blockDim.x / 2; stride > 0; stride >>= 1) {
    if (tid < stride) {
      const float m = fmaxf(maxs[tid], maxs[tid + stride]);
      sums[tid] = sums[tid] * expf(maxs[tid] - m) + sums[tid + stride] * expf(maxs[tid + stride] - m);
      maxs[tid] = m;
    }
    __syncthreads();
  }
  if (tid == 0) {
    losses[row] = logf(sums[0]) + maxs[0] - (float)x[targets[row]];
  }
}

extern "C" void cross_entropy_float32(float* losses, const float* logits, const int* targets, int64_t rows, int64_t vocab, cudaStream_t stream) {
  cross_entropy_forward<float><<<rows, 256, 0, stream>>>(losses, logits, targets, (int)vocab);
}
extern "C" void cross_entropy_bfloat16(float* losses, const __nv_bfloat16* logits, const int* targets, int64_t rows, int64_t vocab, cudaStream_t stream) {
  cross_entropy_forward<__nv_bfloat16><<<rows, 256, 0, stream>>>(losses, logits, targets, (int)vocab);
}
