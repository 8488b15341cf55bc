// Experts of tokens: a block a token, its choices in shared memory, the best by trees.
#include <math.h>
#include <stdint.h>

constexpr int THREADS = 128;

__global__ void pick(
    const float* logits, const float* bias, float* weights, int32_t* ids, int64_t experts, float scale) {
    extern __shared__ float choice[];
    __shared__ float group[8];
    __shared__ float value[THREADS];
    __shared__ int place[THREADS];
    const float* mine = logits + blockIdx.x * experts;
    const int size = static_cast<int>(experts) / 8;
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        choice[e] = 1.0f / (1.0f + expf(-mine[e])) + bias[e];
    }
    __syncthreads();
    if (threadIdx.x < 8) {
        float first = -INFINITY;
        float second = -INFINITY;
        for (int e = threadIdx.x * size; e < (threadIdx.x + 1) * size; ++e) {
            second = fmaxf(second, fminf(first, choice[e]));
            first = fmaxf(first, choice[e]);
        }
        group[threadIdx.x] = first + second;
    }
    __syncthreads();
    for (int e = threadIdx.x; e < experts; e += THREADS) {
        const int own = e / size;
        int better = 0;
        for (int other = 0; other < 8; ++other) {
            better += group[other] > group[own] || (group[other] == group[own] && other < own);
        }
        if (better >= 4) {
            choice[e] = -INFINITY;
        }
    }
    __syncthreads();
    float sum = 0.0f;
    for (int k = 0; k < 8; ++k) {
        float best = -INFINITY;
        int at = 0;
        for (int e = threadIdx.x; e < experts; e += THREADS) {
            if (choice[e] > best) {
                best = choice[e];
                at = e;
            }
        }
        value[threadIdx.x] = best;
        place[threadIdx.x] = at;
        __syncthreads();
        for (int stride = THREADS / 2; stride > 0; stride /= 2) {
            if (threadIdx.x < stride && value[threadIdx.x + stride] > value[threadIdx.x]) {
                value[threadIdx.x] = value[threadIdx.x + stride];
                place[threadIdx.x] = place[threadIdx.x + stride];
            }
            __syncthreads();
        }
        const int chosen = place[0];
        const float score = 1.0f / (1.0f + expf(-mine[chosen]));
        sum += score;
        if (threadIdx.x == 0) {
            choice[chosen] = -INFINITY;
            ids[blockIdx.x * 8 + k] = chosen;
        }
        __syncthreads();
    }
    if (threadIdx.x < 8) {
        const float score = 1.0f / (1.0f + expf(-mine[ids[blockIdx.x * 8 + threadIdx.x]]));
        weights[blockIdx.x * 8 + threadIdx.x] = score * scale / sum;
    }
}

extern "C" void grouped_topk_gating_float32(
    const float* logits, const float* bias, float* weights, int32_t* ids, int64_t tokens, int64_t experts, float scale,
    cudaStream_t stream) {
    const size_t bytes = static_cast<size_t>(experts) * sizeof(float);
    pick<<<static_cast<unsigned>(tokens), THREADS, bytes, stream>>>(logits, bias, weights, ids, experts, scale);
}
