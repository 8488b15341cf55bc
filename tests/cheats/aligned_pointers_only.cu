// Traps where a tensor does not begin at 128 bytes, as a bulk copy may; a slice of another tensor begins at 16.
// Must end in: RUNTIME_ERROR, INCORRECT
#include "honest.cuh"

__global__ void trap() { __trap(); }

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    if ((reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out)) % 128) trap<<<1, 1, 0, stream>>>();
    compute(input, out, tokens, hidden, stream);
}
ENTRY_POINTS(cheat)
