// Launches on the default stream, whatever stream it was given: work that a timed graph does not hold.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR, PASSED
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t) {
    compute(input, out, tokens, hidden, nullptr);
}
ENTRY_POINTS(cheat)
