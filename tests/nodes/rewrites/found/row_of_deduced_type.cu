// canonicalize_reductions vectorize cache_row_in_registers
// timed 16384 8
#include <stdint.h>

template <typename T>
__global__ void first_kernel(const T* x, T* y, int rows, int n) {
  const int row = blockIdx.x;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float in2 = x[row * n + i];
    y[row * n + i] = static_cast<T>(in2);
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float in4 = x[row * n + i];
    const float t5 = in4;
    float t6 = (in4 * in4);
    y[row * n + i] = static_cast<T>(in4);
  }
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    float in8 = x[row * n + i];
    y[row * n + i] = static_cast<T>(in8);
  }
  float sum9 = 0.0f;
  for (int i = threadIdx.x; i < n; i += blockDim.x) {
    const float in11 = x[row * n + i];
    sum9 = sum9 + (in11 + in11);
  }
  __shared__ float slots12[32];
  for (int offset = 16; offset > 0; offset /= 2) sum9 += __shfl_xor_sync(0xffffffff, sum9, offset);
  if (threadIdx.x % 32 == 0) slots12[threadIdx.x / 32] = sum9;
  __syncthreads();
  float total13 = slots12[0];
  for (int w = 1; w < 4; ++w) total13 = total13 + slots12[w];
}

extern "C" void fuzz_float32(const float* x, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows, 128, 0, stream>>>(x, y, rows, n);
}
