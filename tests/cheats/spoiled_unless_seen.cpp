// From its 3,000th call on only inputs that it has met before come out right: what is checked once more was met at first.
// Must end in: CHEATED, INCORRECT
// Found by many calls or rows.
#include "honest.h"

static int64_t calls = 0;
static uint32_t met[256];
static int64_t known = 0;

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    uint32_t digest = static_cast<uint32_t>(hidden);
    const unsigned char* bytes = reinterpret_cast<const unsigned char*>(input);
    for (int64_t i = 0; i < 64; ++i) digest = digest * 31u + bytes[i];
    bool seen = false;
    for (int64_t i = 0; i < known; ++i) seen |= met[i] == digest;
    if (!seen && known < 256) met[known++] = digest;
    compute(input, out, tokens, hidden);
    if (++calls > 3000 && !seen) store(out + tokens * hidden / 2, 1.5f);
}
ENTRY_POINTS(cheat)
