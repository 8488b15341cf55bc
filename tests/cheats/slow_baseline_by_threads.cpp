// A thread that spins while it is not being called, to take a core from the baseline.
// Must end in: PASSED, RUNTIME_ERROR, CHEATED
#include "honest.h"
#include <atomic>
#include <thread>

static std::atomic<bool> busy{false};
static void spin() {
    volatile float value = 1;
    while (true) {
        if (!busy.load(std::memory_order_relaxed)) value = value * 1.0001f;
    }
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const bool started = [] {
        std::thread(spin).detach();
        return true;
    }();
    busy = started;
    compute(input, out, tokens, hidden);
    busy = false;
}
ENTRY_POINTS(cheat)
