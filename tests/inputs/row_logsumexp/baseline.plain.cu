// Rows strided over at most 512 blocks; dynamic shared memory for the trees.
#include <stdint.h>
#include <math.h>

__global__ void logsumexp_rows(const float* x, float* y, int rows, int columns) {
    extern __shared__ float scratch[];
    for (int row = blockIdx.x; row < rows; row += gridDim.x) {
        const float* line = x + (int64_t)row * columns;
        float top = -INFINITY;
        for (int j = threadIdx.x; j < columns; j += blockDim.x) {
            top = max(top, line[j]);
        }
        scratch[threadIdx.x] = top;
        __syncthreads();
        for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
            if (threadIdx.x < s) {
                scratch[threadIdx.x] = max(scratch[threadIdx.x], scratch[threadIdx.x + s]);
            }
            __syncthreads();
        }
        const float shift = scratch[0];
        __syncthreads();
        float sum = 0;
        for (int j = threadIdx.x; j < columns; j += blockDim.x) {
            sum += exp(line[j] - shift);
        }
        scratch[threadIdx.x] = sum;
        __syncthreads();
        for (unsigned int s = blockDim.x / 2; s > 0; s >>= 1) {
            if (threadIdx.x < s) {
                scratch[threadIdx.x] += scratch[threadIdx.x + s];
            }
            __syncthreads();
        }
        if (threadIdx.x == 0) {
            y[row] = logf(scratch[0]) + shift;
        }
        __syncthreads();
    }
}

extern "C" void row_logsumexp(const float* x, float* y, int64_t rows, int64_t columns, cudaStream_t stream) {
    const int threads = 128;
    logsumexp_rows<<<rows < 512 ? rows : 512, threads, threads * sizeof(float), stream>>>(x, y, (int)rows, (int)columns);
}
