// PyTorch's form of a softmax: functors for what a pass adds up, and an epilogue that is constructed with the row's numbers.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <float.h>
#include <stdint.h>

template <typename T>
struct Add {
  __device__ __forceinline__ T operator()(T a, T b) const { return a + b; }
};
template <typename T>
struct Max {
  __device__ __forceinline__ T operator()(T a, T b) const { return a < b ? b : a; }
};
template <typename T, typename AccumT>
struct MaxFloat {
  __device__ __forceinline__ AccumT operator()(AccumT max, T v) const { return ::max(max, static_cast<AccumT>(v)); }
};
template <typename T, typename AccumT>
struct SumExpFloat {
  __device__ __forceinline__ SumExpFloat(AccumT v) : max_k(v) {}
  __device__ __forceinline__ AccumT operator()(AccumT sum, T v) const { return sum + expf(static_cast<AccumT>(v) - max_k); }
  const AccumT max_k;
};
template <typename T, typename AccumT, typename OutT>
struct SoftMaxForwardEpilogue {
  __device__ __forceinline__ SoftMaxForwardEpilogue(AccumT max_input, AccumT sum) : max_input(max_input), sum(sum) {}
  __device__ __forceinline__ OutT operator()(T input) const {
    return static_cast<OutT>(expf(static_cast<AccumT>(input) - max_input) / sum);
  }
  const AccumT max_input;
  const AccumT sum;
};

template <template <typename> class Reduction, typename T>
__device__ __forceinline__ T block_reduce(T* smem, T val, const Reduction<T>& r, T default_val) {
  __syncthreads();
  smem[threadIdx.x] = val;
  __syncthreads();
  T warp_val = default_val;
  if (threadIdx.x < 32) {
    for (int i = threadIdx.x; i < blockDim.x; i += 32) warp_val = r(warp_val, smem[i]);
    for (int offset = 16; offset > 0; offset /= 2) warp_val = r(warp_val, __shfl_xor_sync(0xffffffff, warp_val, offset));
    if (threadIdx.x == 0) smem[0] = warp_val;
  }
  __syncthreads();
  return smem[0];
}

template <template <typename, typename> class Reduction, typename T, typename AccumT>
__device__ __forceinline__ AccumT thread_reduce(const T* data, int size, const Reduction<T, AccumT>& r, AccumT default_val) {
  AccumT threadVal = default_val;
  for (int offset = threadIdx.x; offset < size; offset += blockDim.x) threadVal = r(threadVal, data[offset]);
  return threadVal;
}

template <typename scalar_t, typename accscalar_t, typename outscalar_t>
__global__ void softmax_forward(outscalar_t* output, const scalar_t* input, int classes) {
  extern __shared__ unsigned char smem[];
  accscalar_t* sdata = reinterpret_cast<accscalar_t*>(smem);
  input += static_cast<int64_t>(blockIdx.x) * classes;
  output += static_cast<int64_t>(blockIdx.x) * classes;
  accscalar_t threadMax = thread_reduce<MaxFloat, scalar_t, accscalar_t>(input, classes, MaxFloat<scalar_t, accscalar_t>(), -FLT_MAX);
  accscalar_t max_k = block_reduce<Max, accscalar_t>(sdata, threadMax, Max<accscalar_t>(), -FLT_MAX);
  accscalar_t threadExp = thread_reduce<SumExpFloat, scalar_t, accscalar_t>(input, classes, SumExpFloat<scalar_t, accscalar_t>(max_k), 0);
  accscalar_t sumAll = block_reduce<Add, accscalar_t>(sdata, threadExp, Add<accscalar_t>(), 0);
  SoftMaxForwardEpilogue<scalar_t, accscalar_t, outscalar_t> epilogue(max_k, sumAll);
  for (int offset = threadIdx.x; offset < classes; offset += blockDim.x) output[offset] = epilogue(input[offset]);
}

template <typename T>
void run(const T* x, T* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  const int threads = 256;
  softmax_forward<T, float, T><<<rows, threads, threads * sizeof(float), stream>>>(y, x, columns);
}
extern "C" void row_softmax_float16(const __half* x, __half* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, y, rows, columns, stream);
}
extern "C" void row_softmax_float32(const float* x, float* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  run(x, y, rows, columns, stream);
}
