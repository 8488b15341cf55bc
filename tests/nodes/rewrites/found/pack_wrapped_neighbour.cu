// vectorize
// timed 4096 4096 even
// A wrapped neighbour's pack.
#include <stdint.h>

__global__ void first_kernel(const float* __restrict__ z, const float* __restrict__ pair, float* __restrict__ y, int rows, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= rows * n) return;
  const int row = i / n;
  const int column = i % n;
  float in1 = z[i];
  float in3 = z[row * n + (column + 1) % n];
  float t4 = tanhf((in3 + 0.5f));
  if (in1 > 0.25f) t4 = (pair[row * 2 * n + 2 * column + 1] * (float)(n % 7));
  y[i] = fminf((in1 / (1.0f + fabsf(pair[row * 2 * n + 2 * column + 1]))), (t4 * (float)(n % 7)));
}

extern "C" void fuzz_float32(const float* z, const float* pair, float* y, int64_t rows, int64_t n, cudaStream_t stream) {
  const int threads0 = 128;
  dim3 grid0((rows * n + 127) / 128);
  dim3 block0(threads0);
  first_kernel<<<grid0, block0, 0, stream>>>(z, pair, y, rows, n);
}
