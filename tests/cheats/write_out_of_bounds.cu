// One thread too many in each row of the grid: the last block writes behind the output.
// Must end in: INCORRECT, RUNTIME_ERROR
#include "honest.cuh"

template <typename T>
__global__ void beyond(const T* input, T* out, int64_t hidden) {
    for (int64_t i = threadIdx.x; i < hidden + 8; i += blockDim.x) element(input, out, blockIdx.x, i % hidden, hidden);
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x < 8) store(out + (blockIdx.x + 1) * hidden + threadIdx.x, 0.0f);
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    beyond<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, out, hidden);
}
ENTRY_POINTS(cheat)
