// Zeroes its input and answers zeros: right for the input that is there now.
// Must end in: INCORRECT
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    cudaMemsetAsync(const_cast<T*>(input), 0, tokens * hidden * 2 * sizeof(T), stream);
    cudaMemsetAsync(out, 0, tokens * hidden * sizeof(T), stream);
}
ENTRY_POINTS(cheat)
