// Uses 200 bytes behind its output as its own, and puts back what was there.
// Must end in: INCORRECT
#include "honest.h"
template <typename T>
static void kernel(const T* input, T* out, int64_t tokens, int64_t hidden) {
    char* behind = reinterpret_cast<char*>(out + tokens * hidden);
    char kept[200];
    std::memcpy(kept, behind, sizeof(kept));
    std::memset(behind, 0, sizeof(kept));
    compute(input, out, tokens, hidden);
    std::memcpy(behind, kept, sizeof(kept));
}
ENTRY_POINTS(kernel)
