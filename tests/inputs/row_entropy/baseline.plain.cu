// A row's entropy from its logits in one pass: the maximum, the sum of exponentials and the sum of logits weighted by them,
// all kept up to date at once, joined by a function that changes its arguments; the first thread joins the warps.
#include <cuda_bf16.h>
#include <float.h>
#include <stdint.h>

#define LOG2E 1.44269504f

struct Running {
  float top;
  float sum;
  float weighted;
};

__device__ void merge(float& top, float& sum, float& weighted, float top2, float sum2, float weighted2) {
  if (top2 > top) {
    const float keep = exp2f((top - top2) * LOG2E);
    sum = sum * keep + sum2;
    weighted = weighted * keep + weighted2;
    top = top2;
  } else if (top2 > -INFINITY) {
    const float keep = exp2f((top2 - top) * LOG2E);
    sum += sum2 * keep;
    weighted += weighted2 * keep;
  }
}

template <typename T, int kThreads>
__global__ void row_entropy_kernel(float* __restrict__ out, const T* __restrict__ logits, int64_t width) {
  __shared__ Running shared[kThreads / 32];
  const T* row = logits + blockIdx.x * width;
  float top = -FLT_MAX, sum = 0.0f, weighted = 0.0f;
  for (int64_t c = threadIdx.x; c < width; c += kThreads) {
    const float value = static_cast<float>(row[c]);
    if (value > top) {
      const float keep = exp2f((top - value) * LOG2E);
      sum = sum * keep + 1.0f;
      weighted = weighted * keep + value;
      top = value;
    } else {
      const float p = exp2f((value - top) * LOG2E);
      sum += p;
      weighted += p * value;
    }
  }
  for (int offset = 16; offset > 0; offset /= 2) {
    const float top2 = __shfl_down_sync(0xffffffff, top, offset);
    const float sum2 = __shfl_down_sync(0xffffffff, sum, offset);
    const float weighted2 = __shfl_down_sync(0xffffffff, weighted, offset);
    merge(top, sum, weighted, top2, sum2, weighted2);
  }
  if (threadIdx.x % 32 == 0) {
    shared[threadIdx.x / 32].top = top;
    shared[threadIdx.x / 32].sum = sum;
    shared[threadIdx.x / 32].weighted = weighted;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kThreads / 32; ++w) {
      merge(top, sum, weighted, shared[w].top, shared[w].sum, shared[w].weighted);
    }
    out[blockIdx.x] = top + logf(sum) - weighted / sum;
  }
}

extern "C" void row_entropy_float32(float* out, const float* logits, int64_t rows, int64_t width, cudaStream_t stream) {
  row_entropy_kernel<float, 256><<<rows, 256, 0, stream>>>(out, logits, width);
}
extern "C" void row_entropy_bfloat16(float* out, const __nv_bfloat16* logits, int64_t rows, int64_t width, cudaStream_t stream) {
  row_entropy_kernel<__nv_bfloat16, 256><<<rows, 256, 0, stream>>>(out, logits, width);
}
