// One block a picked row, 16 bytes a thread and step; rows that do not divide go element by element.
#include <cuda_fp16.h>
#include <stdint.h>

__global__ void gather_wide(const uint4* __restrict__ table, const int64_t* __restrict__ index, uint4* __restrict__ out, int wide) {
  const int64_t from = index[blockIdx.x] * wide;
  const int64_t to = (int64_t)blockIdx.x * wide;
  for (int i = threadIdx.x; i < wide; i += blockDim.x) out[to + i] = table[from + i];
}

template <typename T>
__global__ void gather_narrow(const T* __restrict__ table, const int64_t* __restrict__ index, T* __restrict__ out, int width) {
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    out[(int64_t)blockIdx.x * width + i] = table[index[blockIdx.x] * width + i];
  }
}

template <typename T>
void gather(const T* table, const int64_t* index, T* out, int64_t picks, int64_t width, cudaStream_t stream) {
  if (width * sizeof(T) % 16 == 0 && ((uintptr_t)table | (uintptr_t)out) % 16 == 0) {
    gather_wide<<<picks, 128, 0, stream>>>((const uint4*)table, index, (uint4*)out, width * sizeof(T) / 16);
  } else {
    gather_narrow<T><<<picks, 128, 0, stream>>>(table, index, out, width);
  }
}

extern "C" void gather_rows_float16(const __half* table, const int64_t* index, __half* out, int64_t picks, int64_t width, cudaStream_t stream) {
  gather(table, index, out, picks, width, stream);
}
extern "C" void gather_rows_float32(const float* table, const int64_t* index, float* out, int64_t picks, int64_t width, cudaStream_t stream) {
  gather(table, index, out, picks, width, stream);
}
