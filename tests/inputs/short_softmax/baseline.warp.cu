// Softmax of short rows: a warp each row, blocks of (32, 4), the row in an array of each thread, what lies behind it minus infinity.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <math.h>
#include <stdint.h>

constexpr int kWarp = 32;

template <typename T, int kItems>
__global__ void array_softmax_kernel(T* dst, const T* src, const int rows, const int columns) {
  const int row = blockIdx.x * blockDim.y + threadIdx.y;
  if (row >= rows) return;
  const T* from = src + static_cast<int64_t>(row) * columns;
  T* to = dst + static_cast<int64_t>(row) * columns;
  float kept[kItems];
  float highest = -INFINITY;
#pragma unroll
  for (int it = 0; it < kItems; ++it) {
    const int at = threadIdx.x + it * kWarp;
    kept[it] = at < columns ? static_cast<float>(from[at]) : -INFINITY;
    highest = fmaxf(highest, kept[it]);
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) highest = fmaxf(highest, __shfl_xor_sync(0xffffffffu, highest, offset));
  float total = 0.0f;
#pragma unroll
  for (int it = 0; it < kItems; ++it) {
    kept[it] = __expf(kept[it] - highest);
    total += kept[it];
  }
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) total += __shfl_xor_sync(0xffffffffu, total, offset);
#pragma unroll
  for (int it = 0; it < kItems; ++it) {
    const int at = threadIdx.x + it * kWarp;
    if (at < columns) to[at] = static_cast<T>(kept[it] / total);
  }
}

template <typename T>
void run(const T* x, T* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  const dim3 block(kWarp, 4);
  const dim3 grid((rows + 3) / 4);
  if (columns <= 128) {
    array_softmax_kernel<T, 4><<<grid, block, 0, stream>>>(y, x, rows, columns);
  } else if (columns <= 256) {
    array_softmax_kernel<T, 8><<<grid, block, 0, stream>>>(y, x, rows, columns);
  } else if (columns <= 512) {
    array_softmax_kernel<T, 16><<<grid, block, 0, stream>>>(y, x, rows, columns);
  } else {
    array_softmax_kernel<T, 32><<<grid, block, 0, stream>>>(y, x, rows, columns);
  }
}
extern "C" void short_softmax_float16(const __half* x, __half* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, y, rows, columns, stream);
}
extern "C" void short_softmax_float32(const float* x, float* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, y, rows, columns, stream);
}
