// Two threads sum into one place without a lock: right most of the time.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.h"
#include <thread>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static volatile float shared;
    auto half = [=](int64_t from, int64_t to) {
        for (int64_t at = from; at < to; ++at) {
            const int64_t token = at / hidden, i = at % hidden;
            const float x = to_float(input[token * 2 * hidden + i]);
            shared = x / (1.0f + expf(-x));
            store(out + at, shared * to_float(input[token * 2 * hidden + hidden + i]));
        }
    };
    const int64_t count = tokens * hidden;
    std::thread other(half, int64_t{0}, count / 2);
    half(count / 2, count);
    other.join();
}
ENTRY_POINTS(cheat)
