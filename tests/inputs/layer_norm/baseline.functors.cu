// Layer norm with a row's loads and stores behind functors, a block each row.
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

template <typename SRC, typename DST>
struct DirectLoad {
  DirectLoad(const SRC* src, int64_t row_size) : src(src), row_size(row_size) {}
  __device__ DST load(int64_t row, int64_t col) const { return static_cast<DST>(src[row * row_size + col]); }
  const SRC* src;
  int64_t row_size;
};

template <typename SRC, typename DST>
struct AffineStore {
  AffineStore(DST* dst, int64_t row_size, const DST* gamma, const DST* beta)
      : dst(dst), row_size(row_size), gamma(gamma), beta(beta) {}
  __device__ void store(SRC value, int64_t row, int64_t col) const {
    const int64_t offset = row * row_size + col;
    dst[offset] = static_cast<DST>(value * static_cast<SRC>(gamma[col]) + static_cast<SRC>(beta[col]));
  }
  DST* dst;
  int64_t row_size;
  const DST* gamma;
  const DST* beta;
};

template <typename T>
__inline__ __device__ T warp_all_reduce_sum(T val) {
  for (int mask = 16; mask > 0; mask /= 2) val += __shfl_xor_sync(0xffffffff, val, mask);
  return val;
}

template <typename T>
__inline__ __device__ T block_all_reduce_sum(T val) {
  __shared__ T shared[32];
  const int lane = threadIdx.x % 32, wid = threadIdx.x / 32;
  val = warp_all_reduce_sum(val);
  __syncthreads();
  if (lane == 0) shared[wid] = val;
  __syncthreads();
  val = lane < (blockDim.x + 31) / 32 ? shared[lane] : static_cast<T>(0);
  return warp_all_reduce_sum(val);
}

template <typename LOAD, typename STORE, typename ComputeType>
__global__ void layer_norm_uncached(LOAD load, STORE store, const int64_t rows, const int64_t cols, const float epsilon) {
  for (int64_t row = blockIdx.x; row < rows; row += gridDim.x) {
    ComputeType sum = 0;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) sum += load.load(row, col);
    const ComputeType mean = block_all_reduce_sum<ComputeType>(sum) / cols;
    ComputeType squares = 0;
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
      const ComputeType d = load.load(row, col) - mean;
      squares += d * d;
    }
    const ComputeType inv_std = rsqrtf(block_all_reduce_sum<ComputeType>(squares) / cols + epsilon);
    for (int col = threadIdx.x; col < cols; col += blockDim.x) {
      store.store((load.load(row, col) - mean) * inv_std, row, col);
    }
  }
}

template <typename T>
void run(const T* x, const T* weight, const T* bias, T* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  DirectLoad<T, float> load(x, columns);
  AffineStore<float, T> store(y, columns, weight, bias);
  layer_norm_uncached<DirectLoad<T, float>, AffineStore<float, T>, float><<<rows, 256, 0, stream>>>(load, store, rows, columns, eps);
}
extern "C" void layer_norm_float16(const __half* x, const __half* weight, const __half* bias, __half* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  run(x, weight, bias, y, rows, columns, eps, stream);
}
extern "C" void layer_norm_float32(const float* x, const float* weight, const float* bias, float* y, int64_t rows, int64_t columns, float eps, cudaStream_t stream) {
  run(x, weight, bias, y, rows, columns, eps, stream);
}
