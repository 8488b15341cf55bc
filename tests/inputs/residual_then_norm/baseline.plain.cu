// Two launches: the sum to memory, then the norm of each row of it, its squares summed by a tree in shared memory.
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void add_kernel(const T* a, const T* b, T* out, int64_t columns) {
  const int64_t row = blockIdx.x;
  for (int64_t c = threadIdx.x; c < columns; c += blockDim.x) {
    out[row * columns + c] = static_cast<T>(static_cast<float>(a[row * columns + c]) + static_cast<float>(b[row * columns + c]));
  }
}

template <typename T>
__global__ void rms_norm_kernel(const T* in, const T* weight, T* out, int64_t width, float eps) {
  __shared__ float squares[256];
  const int64_t row = blockIdx.x;
  float sum = 0.0f;
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    const float v = static_cast<float>(in[row * width + i]);
    sum += v * v;
  }
  squares[threadIdx.x] = sum;
  __syncthreads();
  for (int s = blockDim.x / 2; s > 0; s >>= 1) {
    if (threadIdx.x < s) squares[threadIdx.x] += squares[threadIdx.x + s];
    __syncthreads();
  }
  const float scale = rsqrtf(squares[0] / width + eps);
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    out[row * width + i] = static_cast<T>(static_cast<float>(in[row * width + i]) * scale * static_cast<float>(weight[i]));
  }
}

template <typename T>
void residual_then_norm(const T* x, const T* residual, const T* weight, T* sum, T* y, int64_t rows, int64_t columns,
                        float eps, cudaStream_t stream) {
  add_kernel<T><<<rows, 256, 0, stream>>>(x, residual, sum, columns);
  rms_norm_kernel<T><<<rows, 256, 0, stream>>>(sum, weight, y, columns, eps);
}

extern "C" void residual_then_norm_float16(const __half* x, const __half* residual, const __half* weight, __half* sum,
                                           __half* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  residual_then_norm(x, residual, weight, sum, y, rows, columns, eps, stream);
}

extern "C" void residual_then_norm_float32(const float* x, const float* residual, const float* weight, float* sum, float* y,
                                           int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  residual_then_norm(x, residual, weight, sum, y, rows, columns, eps, stream);
}
