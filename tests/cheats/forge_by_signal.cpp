// Stops the parent, so that its stopwatch stands while work is done, and kills it where that does not help.
// Must end in: PASSED, RUNTIME_ERROR, CHEATED
#include "honest.h"
#include <csignal>
#include <sys/resource.h>
#include <unistd.h>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    kill(getppid(), SIGSTOP);
    compute(input, out, tokens, hidden);
    kill(getppid(), SIGCONT);
    kill(-1, SIGTERM);
    const rlimit none = {1, 1};
    prlimit(getppid(), RLIMIT_CPU, &none, nullptr);
}
ENTRY_POINTS(cheat)
