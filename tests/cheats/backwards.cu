// Takes rows and elements from the last to the first: what its producer wrote last is still in the cache, and what its
// consumer reads first is written last.
// Must end in: PASSED
#include "honest.cuh"

template <typename T>
__global__ void last_first(const T* input, T* out, int64_t hidden) {
    const int64_t token = gridDim.x - 1 - blockIdx.x;
    for (int64_t i = hidden - 1 - threadIdx.x; i >= 0; i -= blockDim.x) element(input, out, token, i, hidden);
}

template <typename T>
__global__ void packs_last_first(const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
    constexpr int kLanes = 16 / sizeof(T);
    const int64_t token = gridDim.x - 1 - blockIdx.x;
    const Pack<T>* gate = reinterpret_cast<const Pack<T>*>(input + token * 2 * hidden);
    const Pack<T>* up = reinterpret_cast<const Pack<T>*>(input + token * 2 * hidden + hidden);
    Pack<T>* row = reinterpret_cast<Pack<T>*>(out + token * hidden);
    for (int64_t i = hidden / kLanes - 1 - threadIdx.x; i >= 0; i -= blockDim.x) {
        const Pack<T> x = gate[i], y = up[i];
        Pack<T> product;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            const float value = to_float(x.lane[lane]);
            store(&product.lane[lane], value / (1.0f + __expf(-value)) * to_float(y.lane[lane]));
        }
        row[i] = product;
    }
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const int64_t steps = hidden / (16 / sizeof(T));
    const unsigned blocks = static_cast<unsigned>(tokens);
    if (hidden % 8) {
        last_first<<<blocks, 256, 0, stream>>>(input, out, hidden);
    } else {
        packs_last_first<<<blocks, static_cast<unsigned>(steps < 1024 ? steps : 1024), 0, stream>>>(input, out, hidden);
    }
}
ENTRY_POINTS(cheat)
