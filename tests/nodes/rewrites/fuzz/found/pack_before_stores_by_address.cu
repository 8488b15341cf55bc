// expand_macros vectorize
// timed 8192 1024
// wrong, seed 30001
// rows=3 n=36, 0 elements off, forwards, 132 multiprocessors: y: 48 of 108 values wrong, first (0, 20): 0.05623984336853027 for 0.046211715787649155
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#define LOOP(i, n) for (int i = threadIdx.x; i < (n); i += blockDim.x)

template <typename T>
__global__ void first_kernel(const T* x, const T* z, const float* s, T* y, T* v, int rows, int n) {
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
  LOOP(col1, n) {
    float in2 = __ldg(&x[(int64_t)row * n + col1 / 2]);
    float in3 = y[(int64_t)row * n + col1];
    const float t4 = in3 * 2.0f;
    float t5 = fmaxf(t4, in2);
    if (in2 > 0.25f) t5 = fmaxf(in3, in3);
    float changed_in2 = in2;
    if (t5 > 0.5f) changed_in2 = (0.5f * (float)(n % 7));
    if (changed_in2 > 100.0f) changed_in2 = 100.0f;
    v[(int64_t)row * n + col1] = static_cast<T>(((t5 * in2) / (1.0f + fabsf(exp(-fabsf(0.5f))))));
  }
  #pragma unroll 4
  LOOP(c, n) {
    const float in9 = s[row];
    float t10 = (y[(int64_t)row * n + c] * 2.0);
    const float t11 = in9 * 2.0f;
    v[(int64_t)row * n + c] = static_cast<T>(tanhf((y[(int64_t)row * n + c] - t11)));
  }
  __syncthreads();
  float top12 = -INFINITY;
  #pragma unroll
  LOOP(i, n) {
    if (__ldg(&z[(int64_t)row * n + i]) > top12) top12 = __ldg(&z[(int64_t)row * n + i]);
  }
  __shared__ float slots14[32];
  for (int offset = 16; offset > 0; offset >>= 1) top12 = fmaxf(top12, __shfl_xor_sync(0xffffffff, top12, offset));
  if (threadIdx.x % 32 == 0) slots14[threadIdx.x / 32] = top12;
  __syncthreads();
  top12 = threadIdx.x % 32 < 2 ? slots14[threadIdx.x % 32] : -INFINITY;
  if (threadIdx.x < 32) {
    for (int offset = 16; offset > 0; offset /= 2) top12 = fmaxf(top12, __shfl_down_sync(0xffffffff, top12, offset));
    if (threadIdx.x == 0) slots14[0] = top12;
  }
  __syncthreads();
  const float total15 = slots14[0];
  float total13 = 0.0f;
  #pragma unroll
  LOOP(i, n) {
    const float e = expf(__ldg(&z[(int64_t)row * n + i]) - total15);
    total13 += e;
  }
  __shared__ float slots16[32];
  for (int offset = 16; offset > 0; offset /= 2) total13 += __shfl_down_sync(0xffffffff, total13, offset);
  if (threadIdx.x % 32 == 0) slots16[threadIdx.x / 32] = total13;
  __syncthreads();
  float total17 = slots16[0];
  for (int w = 1; w < blockDim.x / 32; ++w) total17 = total17 + slots16[w];
  #pragma unroll 4
  LOOP(i, n) {
    y[(int64_t)row * n + i] = static_cast<T>(expf(__ldg(&z[(int64_t)row * n + i]) - total15) / total17);
  }
  #pragma unroll
  LOOP(col18, n) {
    const float in20 = __ldg(&z[(int64_t)row * n + col18 / 2]);
    __stcs(&y[(int64_t)row * n + col18], static_cast<T>((tanhf(0.5f) * 1e-1)));
    __stcs(&v[(int64_t)row * n + col18], static_cast<T>(exp(-fabsf(fminf(s[row], 0.5f)))));
  }
  __syncthreads();
  }
}

extern "C" void fuzz_float32(const float* x, const float* z, const float* s, float* y, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  const int threads0 = 64;
  dim3 grid0(rows < 3 ? rows : 3);
  dim3 block0(threads0);
  first_kernel<<<grid0, block0, 0, stream>>>(x, z, s, y, v, rows, n);
}
