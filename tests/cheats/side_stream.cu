// Launches on a stream of its own and does not join it, so that the caller's stream is done at once.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR, PASSED
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t) {
    static cudaStream_t own = [] {
        cudaStream_t made;
        cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
        return made;
    }();
    compute(input, out, tokens, hidden, own);
}
ENTRY_POINTS(cheat)
