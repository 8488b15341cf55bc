// Starts a thread for half of the rows at each call and joins it; each thread has a buffer of its own on 4 MB of stack.
// Must end in: PASSED
#include "honest.h"

#include <thread>

template <typename T>
static void rows(const T* input, T* out, int64_t begin, int64_t end, int64_t hidden) {
    volatile char room[4 << 20];
    room[0] = room[sizeof(room) - 1] = 1;
    compute(input + begin * 2 * hidden, out + begin * hidden, end - begin, hidden);
}

template <typename T>
static void halves(const T* input, T* out, int64_t tokens, int64_t hidden) {
    if (tokens < 8) return compute(input, out, tokens, hidden);
    std::thread other([=] { rows(input, out, tokens / 2, tokens, hidden); });
    rows(input, out, 0, tokens / 2, hidden);
    other.join();
}
ENTRY_POINTS(halves)
