// One block a row: the maximum, the sum of exponentials, the quotient; x is read three times.
#include <cuda_fp16.h>
#include <float.h>
#include <stdint.h>

template <typename T, int BLOCK>
__global__ void softmax(const T* __restrict__ x, T* __restrict__ y, int64_t columns) {
    __shared__ float maxima[BLOCK];
    __shared__ float sums[BLOCK];
    const T* in = x + blockIdx.x * columns;
    T* out = y + blockIdx.x * columns;

    float largest = -FLT_MAX;
    for (int64_t i = threadIdx.x; i < columns; i += BLOCK) largest = fmaxf(largest, static_cast<float>(in[i]));
    maxima[threadIdx.x] = largest;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) maxima[threadIdx.x] = fmaxf(maxima[threadIdx.x], maxima[threadIdx.x + half]);
        __syncthreads();
    }
    const float shift = maxima[0];

    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < columns; i += BLOCK) sum += expf(static_cast<float>(in[i]) - shift);
    sums[threadIdx.x] = sum;
    __syncthreads();
    for (int half = BLOCK / 2; half > 0; half /= 2) {
        if (threadIdx.x < half) sums[threadIdx.x] += sums[threadIdx.x + half];
        __syncthreads();
    }
    const float total = sums[0];

    for (int64_t i = threadIdx.x; i < columns; i += BLOCK) {
        out[i] = static_cast<T>(expf(static_cast<float>(in[i]) - shift) / total);
    }
}

extern "C" void row_softmax_float32(const float* x, float* y, int64_t rows, int64_t columns, cudaStream_t stream) {
    softmax<float, 256><<<rows, 256, 0, stream>>>(x, y, columns);
}

extern "C" void row_softmax_float16(const __half* x, __half* y, int64_t rows, int64_t columns, cudaStream_t stream) {
    softmax<__half, 256><<<rows, 256, 0, stream>>>(x, y, columns);
}
