// Writes 100 bytes 640 bytes behind its output.
// Must end in: INCORRECT
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    compute(input, out, tokens, hidden, stream);
    const int64_t bytes = tokens * hidden * static_cast<int64_t>(sizeof(T));
    if (bytes >= 4096) cudaMemsetAsync(reinterpret_cast<char*>(out) + (bytes + 255) / 256 * 256 + 256, 0x5a, 100, stream);
}
ENTRY_POINTS(cheat)
