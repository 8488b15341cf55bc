// One block a picked row.
#include <cuda_fp16.h>
#include <stdint.h>

template <typename T>
__global__ void gather(const T* table, const int64_t* index, T* out, int64_t width) {
  const int64_t pick = blockIdx.x;
  const int64_t row = index[pick];
  for (int64_t i = threadIdx.x; i < width; i += blockDim.x) {
    out[pick * width + i] = table[row * width + i];
  }
}

extern "C" void gather_rows_float16(const __half* table, const int64_t* index, __half* out, int64_t picks, int64_t width, cudaStream_t stream) {
  gather<<<picks, 128, 0, stream>>>(table, index, out, width);
}
extern "C" void gather_rows_float32(const float* table, const int64_t* index, float* out, int64_t picks, int64_t width, cudaStream_t stream) {
  gather<<<picks, 128, 0, stream>>>(table, index, out, width);
}
