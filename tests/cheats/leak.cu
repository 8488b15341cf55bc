// Leaves 256 KB of the GPU's memory behind in every call.
// Must end in: OUT_OF_RESOURCES
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    void* kept = nullptr;
    cudaMalloc(&kept, 256 << 10);
    compute(input, out, tokens, hidden, stream);
}
ENTRY_POINTS(cheat)
