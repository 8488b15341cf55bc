// Computes, then resets the device under the harness's feet.
// Must end in: RUNTIME_ERROR, INCORRECT
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    compute(input, out, tokens, hidden, stream);
    cudaDeviceReset();
}
ENTRY_POINTS(cheat)
