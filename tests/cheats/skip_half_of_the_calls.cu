// A counter on the device: after 60 calls every other one does nothing, in graph replays too.
// Must end in: INCORRECT, CHEATED
#include "honest.cuh"

__device__ unsigned int calls;

template <typename T>
__global__ void half_of_them(const T* input, T* out, int64_t hidden) {
    if (calls > 60 && calls % 2 == 0) return;
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) element(input, out, blockIdx.x, i, hidden);
}

__global__ void count() { ++calls; }

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    half_of_them<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, out, hidden);
    count<<<1, 1, 0, stream>>>();
}
ENTRY_POINTS(cheat)
