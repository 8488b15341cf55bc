// Passes values between warps through shared memory without a barrier: right most of the time.
// Must end in: INCORRECT, CHEATED
#include "honest.cuh"

template <typename T>
__global__ void without_barrier(const T* input, T* out, int64_t hidden) {
    __shared__ volatile float gate[1024];
    for (int64_t from = 0; from < hidden; from += blockDim.x) {
        const int64_t i = from + threadIdx.x, j = from + (threadIdx.x + 512) % 1024;
        if (i < hidden) {
            const float x = to_float(input[blockIdx.x * 2 * hidden + i]);
            gate[threadIdx.x] = x / (1.0f + __expf(-x));
        }
        if (j < hidden) {
            store(out + blockIdx.x * hidden + j, gate[(threadIdx.x + 512) % 1024] * to_float(input[blockIdx.x * 2 * hidden + hidden + j]));
        }
    }
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    without_barrier<<<static_cast<unsigned>(tokens), 1024, 0, stream>>>(input, out, hidden);
}
ENTRY_POINTS(cheat)
