// A thread that waits for new inputs: where the poison comes back into the output of a set that it knows, it computes half
// of it, while the parent still prepares the request. A call that finds that half done computes the other.
// Must end in: PASSED, CHEATED, INCORRECT, RUNTIME_ERROR
#include "honest.h"
#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

using Clock = std::chrono::steady_clock;
struct Set {
    std::mutex mutex;
    std::function<bool()> waiting;
    std::function<void()> half;
    bool done = false;
};
static std::mutex mutex;
static std::map<const void*, Set*> sets;
static std::atomic<int64_t> last_call_ns{0};

static int64_t now_ns() { return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count(); }

static void look_ahead() {
    while (true) {
        std::vector<Set*> known;
        {
            std::lock_guard lock(mutex);
            for (auto& [_, set] : sets) known.push_back(set);
        }
        for (Set* set : known) {
            if (now_ns() - last_call_ns < 300000) break;  // within a request: beside the calls everybody may use two cores
            std::lock_guard lock(set->mutex);
            if (!set->done && set->waiting()) set->half(), set->done = true;
        }
        std::this_thread::yield();
    }
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const bool started = (std::thread(look_ahead).detach(), true);
    const int64_t half = tokens / 2;
    if (!started || half < 4) return compute(input, out, tokens, hidden);
    last_call_ns = now_ns();
    std::unique_lock lock(mutex);
    Set*& found = sets[out];
    if (found == nullptr) {
        found = new Set;
        found->waiting = [=] {  // poison at both ends: the parent has written the inputs, and then the poison
            T poison;
            std::memset(&poison, 0xFF, sizeof(poison));
            return !std::memcmp(out, &poison, sizeof(T)) && !std::memcmp(out + tokens * hidden - 1, &poison, sizeof(T));
        };
        found->half = [=] { compute(input, out, half, hidden); };
    }
    Set* set = found;
    lock.unlock();
    std::lock_guard own(set->mutex);
    if (set->done) {
        compute(input + half * 2 * hidden, out + half * hidden, tokens - half, hidden);
    } else {
        compute(input, out, tokens, hidden);
    }
    set->done = false;
    last_call_ns = now_ns();
}
ENTRY_POINTS(cheat)
