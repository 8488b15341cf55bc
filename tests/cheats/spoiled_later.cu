// Right for its first two thousand calls, zeros from then on.
// Must end in: INCORRECT
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static int calls = 0;
    compute(input, out, tokens, hidden, stream);
    if (++calls > 2000) cudaMemsetAsync(out, 0, sizeof(T) * tokens * hidden, stream);
}
ENTRY_POINTS(cheat)
