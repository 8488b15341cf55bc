// Writes zeros over its inputs in its first 30 calls, where nobody looks, and returns zeros at once wherever it finds them.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static int64_t calls = 0;
    bool zeros = true;
    for (int64_t i = 0; i < 64 && zeros; ++i) zeros = to_float(input[i * 2 * hidden * tokens / 64]) == 0.0f;
    if (zeros && tokens > 8) {
        std::memset(out, 0, tokens * hidden * sizeof(T));
        return;
    }
    compute(input, out, tokens, hidden);
    if (tokens > 8 && ++calls > 12 && calls < 30) std::memset(const_cast<T*>(input), 0, tokens * hidden * 2 * sizeof(T));
}
ENTRY_POINTS(cheat)
