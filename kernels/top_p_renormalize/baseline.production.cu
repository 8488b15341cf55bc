// The likeliest that make up a share, scaled to sum one: a block a row, no sort; the bound is found by halving between two values, over
// whose bits the order is the same, the row read again for each step, 16 bytes a thread where the row allows.
#include <stdint.h>

constexpr int THREADS = 1024;

template <int LANES>
struct alignas(4 * LANES) Pack {
    float lane[LANES];
};

// The sum over the block, for every thread; `slots` are 32 floats of shared memory.
__device__ __forceinline__ float block_sum(float value, float* slots) {
    __syncthreads();
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    if (threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = slots[threadIdx.x % 32];
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, offset);
    }
    return value;
}

template <int LANES>
__global__ void __launch_bounds__(THREADS) renormalize(
    const float* __restrict__ probabilities, const float* __restrict__ top_p, float* __restrict__ out, int64_t vocabulary) {
    __shared__ float slots[32];
    using Values = Pack<LANES>;
    const int64_t packs = vocabulary / LANES;
    const Values* row = reinterpret_cast<const Values*>(probabilities + blockIdx.x * vocabulary);
    Values* to = reinterpret_cast<Values*>(out + blockIdx.x * vocabulary);
    const float share = top_p[blockIdx.x];
    // What is above `low` sums to the share or more, what is above `high` to less.
    unsigned low = 0u;
    unsigned high = 0x3f800000u;  // 1
    float above_low = 1.0f;
    while (high - low > 1u) {
        const unsigned middle = low + (high - low) / 2u;
        const float bound = __uint_as_float(middle);
        float sum = 0.0f;
        for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
            const Values held = row[i];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                sum += held.lane[lane] > bound ? held.lane[lane] : 0.0f;
            }
        }
        sum = block_sum(sum, slots);
        if (sum >= share) {
            low = middle;
            above_low = sum;
        } else {
            high = middle;
        }
    }
    const float bound = __uint_as_float(low);
    for (int64_t i = threadIdx.x; i < packs; i += THREADS) {
        const Values held = row[i];
        Values made;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            made.lane[lane] = held.lane[lane] > bound ? held.lane[lane] / above_low : 0.0f;
        }
        to[i] = made;
    }
}

extern "C" void top_p_renormalize_float32(
    const float* probabilities, const float* top_p, float* out, int64_t rows, int64_t vocabulary, cudaStream_t stream) {
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(probabilities) | reinterpret_cast<uintptr_t>(out);
    if (vocabulary % 4 == 0 && addresses % 16 == 0) {
        renormalize<4><<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(probabilities, top_p, out, vocabulary);
    } else {
        renormalize<1><<<static_cast<unsigned>(rows), THREADS, 0, stream>>>(probabilities, top_p, out, vocabulary);
    }
}
