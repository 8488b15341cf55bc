// expand_macros vectorize
// timed 8192 1024

#define LOOP(i, n) for (int i = threadIdx.x; i < (n); i += blockDim.x)

template <typename T>
__global__ void first_kernel(const T* x, const T* z, T* y, T* v, int rows, int n) {
  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    LOOP(c, n) {
      const float t11 = y[(int64_t)row * n + c] * 2.0f;
      v[(int64_t)row * n + c] = static_cast<T>(t11);
    }
    LOOP(i, n) {
      y[(int64_t)row * n + i] = static_cast<T>(expf(__ldg(&z[(int64_t)row * n + i])));
    }
    LOOP(col18, n) {
      __stcs(&y[(int64_t)row * n + col18], static_cast<T>(0.5f));
      __stcs(&v[(int64_t)row * n + col18], static_cast<T>(0.25f));
    }
    __syncthreads();
  }
}

extern "C" void fuzz_float32(const float* x, const float* z, float* y, float* v, int64_t rows, int64_t n, cudaStream_t stream) {
  first_kernel<<<rows < 3 ? rows : 3, 64, 0, stream>>>(x, z, y, v, rows, n);
}
