// Returns at once; a thread computes while the caller believes that the work is done.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.h"
#include <thread>
#include <unistd.h>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    std::thread([=] {
        usleep(300);
        compute(input, out, tokens, hidden);
    }).detach();
}
ENTRY_POINTS(cheat)
