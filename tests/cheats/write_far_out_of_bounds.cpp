// Writes 100 bytes 640 bytes behind its output.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    const int64_t bytes = tokens * hidden * static_cast<int64_t>(sizeof(T));
    char* next = reinterpret_cast<char*>(out) + (bytes + 255) / 256 * 256 + 256;
    if (bytes >= 4096) std::memset(next, 0x5a, 100);
}
ENTRY_POINTS(kernel)
