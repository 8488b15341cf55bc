// Returns at once when the call is the same as the one before: the output is still there.
// Must end in: INCORRECT, CHEATED
#include "honest.h"

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const T* last_input = nullptr;
    static T* last_out = nullptr;
    static int64_t last_tokens = 0;
    if (input == last_input && out == last_out && tokens == last_tokens) return;
    compute(input, out, tokens, hidden);
    last_input = input, last_out = out, last_tokens = tokens;
}
ENTRY_POINTS(cheat)
