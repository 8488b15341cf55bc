// Per-row int8 quantisation, the loop over the row a function that takes what to do with an element.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

__device__ __forceinline__ int8_t float_to_int8_rn(float x) {
  return static_cast<int8_t>(fminf(fmaxf(rintf(x), -128.0f), 127.0f));
}

template <typename InT, typename Op>
__device__ __forceinline__ void for_each_in_row(const InT* in, int len, int tid, int stride, Op&& op) {
  for (int i = tid; i < len; i += stride) op(i, in[i]);
}

template <typename scalar_t>
__global__ void dynamic_scaled_int8_quant_kernel(const scalar_t* input, int8_t* output, float* scale_out, const int hidden_size) {
  const int tid = threadIdx.x;
  const int stride = blockDim.x;
  const int64_t token_idx = blockIdx.x;
  const scalar_t* row_in = input + token_idx * hidden_size;
  int8_t* row_out = output + token_idx * hidden_size;
  float thread_max = 0.0f;
  for_each_in_row(row_in, hidden_size, tid, stride, [&](int, const scalar_t& src) {
    thread_max = fmaxf(thread_max, fabsf(static_cast<float>(src)));
  });
  __shared__ float partial[32];
  for (int offset = 16; offset > 0; offset /= 2) thread_max = fmaxf(thread_max, __shfl_xor_sync(0xffffffff, thread_max, offset));
  if (tid % 32 == 0) partial[tid / 32] = thread_max;
  __syncthreads();
  thread_max = tid % 32 < blockDim.x / 32 ? partial[tid % 32] : 0.0f;
  for (int offset = 16; offset > 0; offset /= 2) thread_max = fmaxf(thread_max, __shfl_xor_sync(0xffffffff, thread_max, offset));
  const float scale = fmaxf(thread_max, 1e-10f) / 127.0f;
  if (tid == 0) scale_out[blockIdx.x] = scale;
  const float inv_s = 1.0f / scale;
  for_each_in_row(row_in, hidden_size, tid, stride, [&](int i, const scalar_t& src) {
    row_out[i] = float_to_int8_rn(static_cast<float>(src) * inv_s);
  });
}

template <typename T>
void run(const T* x, int8_t* q, float* scale, int64_t rows, int64_t columns, cudaStream_t stream) {
  dynamic_scaled_int8_quant_kernel<T><<<rows, 256, 0, stream>>>(x, q, scale, columns);
}
extern "C" void quantize_rows_float16(const __half* x, int8_t* q, float* scale, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, q, scale, rows, columns, stream);
}
extern "C" void quantize_rows_bfloat16(const __nv_bfloat16* x, int8_t* q, float* scale, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, q, scale, rows, columns, stream);
}
