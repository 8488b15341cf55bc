// The compute roof of the vector units: each function runs nothing but independent multiply-adds on registers and answers
// the 1e9 FLOPs a second of its fastest launch, a multiply-add counted as two; a negative CUDA error where it failed.
// Eight chains a thread and 2048 threads a multiprocessor hide the latency of any of them.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

namespace {

constexpr int CHAINS = 8, BLOCK = 256, BLOCKS_OF_A_UNIT = 8, ROUNDS = 4096, TRIES = 8;

__device__ float multiply_add(float a, float b, float c) { return fmaf(a, b, c); }
__device__ double multiply_add(double a, double b, double c) { return fma(a, b, c); }
__device__ __half2 multiply_add(__half2 a, __half2 b, __half2 c) { return __hfma2(a, b, c); }
__device__ __nv_bfloat162 multiply_add(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) { return __hfma2(a, b, c); }

template <typename T>
__device__ T from(float value) {
  return T(value);
}
template <>
__device__ __half2 from<__half2>(float value) {
  return __float2half2_rn(value);
}
template <>
__device__ __nv_bfloat162 from<__nv_bfloat162>(float value) {
  return __float2bfloat162_rn(value);
}

__device__ bool is(float value, float other) { return value == other; }
__device__ bool is(double value, float other) { return value == other; }
__device__ bool is(__half2 value, float other) { return __low2float(value) == other; }
__device__ bool is(__nv_bfloat162 value, float other) { return __low2float(value) == other; }

template <typename T>
__global__ void __launch_bounds__(BLOCK) chains(T* out) {
  const T scale = from<T>(0.5f), shift = from<T>(1.0f + threadIdx.x * 0.0078125f);
  T sum[CHAINS];
#pragma unroll
  for (int i = 0; i < CHAINS; ++i) sum[i] = from<T>(float(i));
#pragma unroll 4
  for (int round = 0; round < ROUNDS; ++round) {
#pragma unroll
    for (int i = 0; i < CHAINS; ++i) sum[i] = multiply_add(sum[i], scale, shift);
  }
#pragma unroll
  for (int i = 0; i < CHAINS; ++i) {
    if (is(sum[i], -1.0f)) *out = sum[i];  // never, and the compiler does not know
  }
}

template <typename T>
double gflops(int width) {
  int units = 0;
  T* out = nullptr;
  cudaEvent_t begin, end;
  cudaDeviceGetAttribute(&units, cudaDevAttrMultiProcessorCount, 0);
  if (cudaError_t error = cudaMalloc(&out, sizeof(T))) return -double(error);
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  const int blocks = units * BLOCKS_OF_A_UNIT;
  const double flops = 2.0 * width * CHAINS * ROUNDS * double(blocks) * BLOCK;
  double best = 0.0;
  for (int attempt = 0; attempt < TRIES; ++attempt) {
    cudaEventRecord(begin);
    chains<T><<<blocks, BLOCK>>>(out);
    cudaEventRecord(end);
    if (cudaError_t error = cudaEventSynchronize(end)) return -double(error);
    float ms = 0.0f;
    if (cudaError_t error = cudaEventElapsedTime(&ms, begin, end)) return -double(error);
    if (flops / ms * 1e-6 > best) best = flops / ms * 1e-6;
  }
  cudaFree(out);
  const cudaError_t error = cudaGetLastError();
  return error ? -double(error) : best;
}

}  // namespace

extern "C" double roof_float64() { return gflops<double>(1); }
extern "C" double roof_float32() { return gflops<float>(1); }
extern "C" double roof_float16() { return gflops<__half2>(2); }
extern "C" double roof_bfloat16() { return gflops<__nv_bfloat162>(2); }
