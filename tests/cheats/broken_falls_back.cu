// A launch that the device refuses, an error that is swallowed, and a fallback that hides it. Nothing is gained, and
// nothing may be claimed.
// Must end in: PASSED, RUNTIME_ERROR
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    rows<<<static_cast<unsigned>(tokens), 4096, 0, stream>>>(input, out, hidden);
    if (cudaGetLastError() != cudaSuccess) compute(input, out, tokens, hidden, stream);
}
ENTRY_POINTS(cheat)
