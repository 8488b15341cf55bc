// A fork bomb, with a daemon for good measure.
// Must end in: PASSED, RUNTIME_ERROR, OUT_OF_RESOURCES
#include "honest.h"
#include <unistd.h>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int i = 0; i < 20; ++i) {
        if (fork() == 0) setsid();
    }
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
