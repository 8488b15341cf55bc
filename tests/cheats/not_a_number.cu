// NaN everywhere: a comparison that asks `difference > tolerance` finds nothing wrong.
// Must end in: INCORRECT
#include "honest.cuh"

template <typename T>
__global__ void nan_rows(T* out, int64_t hidden) {
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) store(out + blockIdx.x * hidden + i, __int_as_float(0x7fffffff));
}

template <typename T>
void cheat(const T*, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    nan_rows<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(out, hidden);
}
ENTRY_POINTS(cheat)
