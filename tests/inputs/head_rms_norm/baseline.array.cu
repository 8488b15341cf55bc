// One warp a head, what it has of its row in an array that the template makes as long as the longest head needs.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T, int kPerLane>
__global__ void head_norm_in_array(T* q, const T* weight, const int rows, const int dim, const float eps) {
  const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= rows) return;
  T* head = q + static_cast<int64_t>(row) * dim;
  float values[kPerLane];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int d = lane + i * 32;
    if (d < dim) {
      values[i] = static_cast<float>(head[d]);
      squares += values[i] * values[i];
    }
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) squares += __shfl_xor_sync(0xffffffffu, squares, mask);
  const float scale = rsqrtf(squares / dim + eps);
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int d = lane + i * 32;
    if (d < dim) head[d] = static_cast<T>(values[i] * scale * static_cast<float>(weight[d]));
  }
}

template <typename T>
void run(T* q, const T* weight, int64_t tokens, int64_t heads, int64_t head_dim, float eps, cudaStream_t stream) {
  const int rows = tokens * heads;
  if (head_dim <= 128) {
    head_norm_in_array<T, 4><<<(rows + 7) / 8, 256, 0, stream>>>(q, weight, rows, head_dim, eps);
  } else {
    head_norm_in_array<T, 16><<<(rows + 7) / 8, 256, 0, stream>>>(q, weight, rows, head_dim, eps);
  }
}

extern "C" void head_rms_norm_float16(__half* q, const __half* weight, int64_t tokens, int64_t heads, int64_t head_dim, float eps, cudaStream_t stream) {
  run(q, weight, tokens, heads, head_dim, eps, stream);
}
extern "C" void head_rms_norm_bfloat16(__nv_bfloat16* q, const __nv_bfloat16* weight, int64_t tokens, int64_t heads, int64_t head_dim, float eps, cudaStream_t stream) {
  run(q, weight, tokens, heads, head_dim, eps, stream);
}
