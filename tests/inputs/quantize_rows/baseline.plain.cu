// One block a row: its largest absolute value by a tree, then the quotients.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ float widen(const __half* p) { return __half2float(*p); }
__device__ float widen(const __nv_bfloat16* p) { return __bfloat162float(*p); }

template <typename T>
__global__ void quantize_kernel(const T* __restrict__ x, int8_t* __restrict__ q, float* __restrict__ scale, const int columns) {
  extern __shared__ float reduced[];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * columns;
  float most = 1e-10f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) most = fmaxf(most, fabsf(widen(x + base + i)));
  reduced[threadIdx.x] = most;
  __syncthreads();
  for (int stride = blockDim.x >> 1; stride > 0; stride >>= 1) {
    if (threadIdx.x < stride) reduced[threadIdx.x] = fmaxf(reduced[threadIdx.x], reduced[threadIdx.x + stride]);
    __syncthreads();
  }
  const float step = reduced[0] / 127.0f;
  if (threadIdx.x == 0) scale[blockIdx.x] = step;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    const float v = rintf(widen(x + base + i) / step);
    q[base + i] = static_cast<int8_t>(fminf(fmaxf(v, -127.0f), 127.0f));
  }
}

template <typename T>
void quantize(const T* x, int8_t* q, float* scale, int64_t rows, int64_t columns, cudaStream_t stream) {
  constexpr int kBlock = 512;
  quantize_kernel<T><<<dim3(rows), dim3(kBlock), kBlock * sizeof(float), stream>>>(x, q, scale, columns);
}

extern "C" void quantize_rows_float16(const __half* x, int8_t* q, float* scale, int64_t rows, int64_t columns, cudaStream_t stream) {
  quantize(x, q, scale, rows, columns, stream);
}
extern "C" void quantize_rows_bfloat16(const __nv_bfloat16* x, int8_t* q, float* scale, int64_t rows, int64_t columns, cudaStream_t stream) {
  quantize(x, q, scale, rows, columns, stream);
}
