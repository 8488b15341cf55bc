// The likeliest that make up a share, scaled to sum one: a block a row, the bound found by halving between two values bit by bit.
#include <stdint.h>

constexpr int THREADS = 256;

// The sum of a row's values above a bound, for every thread.
__device__ float sum_above(const float* row, float bound, int64_t vocabulary, float* partial) {
    float sum = 0.0f;
    for (int64_t i = threadIdx.x; i < vocabulary; i += THREADS) {
        sum += row[i] > bound ? row[i] : 0.0f;
    }
    __syncthreads();
    partial[threadIdx.x] = sum;
    __syncthreads();
    for (int stride = THREADS / 2; stride > 0; stride /= 2) {
        if (threadIdx.x < stride) {
            partial[threadIdx.x] += partial[threadIdx.x + stride];
        }
        __syncthreads();
    }
    return partial[0];
}

__global__ void renormalize(const float* probabilities, const float* top_p, float* out, int64_t vocabulary) {
    __shared__ float partial[THREADS];
    const float* row = probabilities + blockIdx.x * vocabulary;
    unsigned low = 0u;
    for (int bit = 29; bit >= 0; --bit) {
        const unsigned raised = low | (1u << bit);
        if (sum_above(row, __uint_as_float(raised), vocabulary, partial) >= top_p[blockIdx.x]) {
            low = raised;
        }
    }
    const float bound = __uint_as_float(low);
    const float kept = sum_above(row, bound, vocabulary, partial);
    for (int64_t i = threadIdx.x; i < vocabulary; i += THREADS) {
        out[blockIdx.x * vocabulary + i] = row[i] > bound ? row[i] / kept : 0.0f;
    }
}

extern "C" void top_p_renormalize_float32(
    const float* probabilities, const float* top_p, float* out, int64_t rows, int64_t vocabulary, cudaStream_t stream) {
    renormalize<<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(probabilities, top_p, out, vocabulary);
}
