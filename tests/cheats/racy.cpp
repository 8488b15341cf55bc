// Two threads pass values through one place without a lock: right as long as they do not run at the same time. Each
// does its half three times over, so that luck is not rewarded with a speedup.
// Must end in: INCORRECT, CHEATED, PASSED
#include "honest.h"
#include <thread>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static volatile float shared;
    auto half = [=](int64_t from, int64_t to) {
        for (int64_t at = from; at < to; ++at) {
            const int64_t token = at / hidden, i = at % hidden;
            shared = to_float(input[token * 2 * hidden + i]);
            const float power = expf(-shared);
            store(out + at, shared / (1.0f + power) * to_float(input[token * 2 * hidden + hidden + i]));
        }
    };
    const int64_t count = tokens * hidden;
    for (int again = 0; again < 3; ++again) {
        std::thread other(half, int64_t{0}, count / 2);
        half(count / 2, count);
        other.join();
    }
}
ENTRY_POINTS(cheat)
