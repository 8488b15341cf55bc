// Threads that end with the call: std::async for a third of the rows, a thread with a buffer of its own on 4 MB of stack for another, and a
// future of the rest that the caller fulfils itself.
// Must end in: PASSED
#include "honest.h"

#include <future>
#include <thread>

template <typename T>
static void thirds(const T* input, T* out, int64_t tokens, int64_t hidden) {
    const auto rows = [=](int64_t begin, int64_t end) { compute(input + begin * 2 * hidden, out + begin * hidden, end - begin, hidden); };
    const int64_t first = tokens / 3, second = 2 * tokens / 3;
    auto begun = std::async(std::launch::async, [=] { rows(0, first); });
    std::thread other([=] {
        volatile char room[4 << 20];
        room[0] = room[sizeof(room) - 1] = 1;
        rows(first, second);
    });
    std::async(std::launch::deferred, [=] { rows(second, tokens); }).get();
    begun.get();
    other.join();
}
ENTRY_POINTS(thirds)
