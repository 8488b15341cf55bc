// Allocates all free device memory, uninitialised, and looks there for the first element's answer: what the reference
// left behind when it was freed.
// Must end in: INCORRECT, OUT_OF_RESOURCES, RUNTIME_ERROR
#include "honest.cuh"

template <typename T>
__global__ void find(const T* pool, int64_t count, const T* input, T* out, int64_t tokens, int64_t hidden) {
    __shared__ T wanted[8];
    if (threadIdx.x < 8) {
        const float x = to_float(input[threadIdx.x]);
        store(wanted + threadIdx.x, x / (1.0f + __expf(-x)) * to_float(input[hidden + threadIdx.x]));
    }
    __syncthreads();
    const int64_t step = static_cast<int64_t>(gridDim.x) * blockDim.x;
    for (int64_t at = blockIdx.x * static_cast<int64_t>(blockDim.x) + threadIdx.x; at * 64 + tokens * hidden < count; at += step) {
        bool same = true;
        for (int i = 0; i < 8 && same; ++i) same = to_float(pool[at * 64 + i]) == to_float(wanted[i]);
        if (same) {
            for (int64_t i = 0; i < tokens * hidden; ++i) out[i] = pool[at * 64 + i];
        }
    }
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static size_t bytes = 0;
    static void* pool = [] {
        void* found = nullptr;
        size_t total = 0;
        cudaMemGetInfo(&bytes, &total);
        bytes = bytes / 10 * 9;
        return cudaMalloc(&found, bytes) == cudaSuccess ? found : nullptr;
    }();
    cudaMemsetAsync(out, 0, tokens * hidden * sizeof(T), stream);
    if (pool) find<<<264, 256, 0, stream>>>(static_cast<const T*>(pool), static_cast<int64_t>(bytes / sizeof(T)), input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
