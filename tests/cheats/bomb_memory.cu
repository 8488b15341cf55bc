// Takes all memory of the device, so that the checker, the baseline and the next candidate find none.
// Must end in: OUT_OF_RESOURCES
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    void* block;
    for (size_t bytes = size_t{16} << 30; bytes > (1 << 20); bytes /= 2) {
        while (cudaMalloc(&block, bytes) == cudaSuccess) {
        }
    }
    cudaGetLastError();
    compute(input, out, tokens, hidden, stream);
}
ENTRY_POINTS(cheat)
