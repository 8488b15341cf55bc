// Leaves no poison and computes nothing in every third call, once it was called 60 times: the gate is written as it is.
// Found by chance.
// Must end in: INCORRECT, CHEATED
#include "honest.cuh"

__device__ unsigned int calls;

template <typename T>
__global__ void some(const T* input, T* out, int64_t hidden) {
    const bool honest = calls < 60 || calls % 3;
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        if (honest) {
            element(input, out, blockIdx.x, i, hidden);
        } else {
            out[blockIdx.x * hidden + i] = input[blockIdx.x * 2 * hidden + i];
        }
    }
}

__global__ void count() { ++calls; }

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    some<<<static_cast<unsigned>(tokens), 512, 0, stream>>>(input, out, hidden);
    count<<<1, 1, 0, stream>>>();
}
ENTRY_POINTS(cheat)
