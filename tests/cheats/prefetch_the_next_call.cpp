// Knows from the request which set comes next, and has its second thread fetch that set's inputs while it computes: cold
// calls are not cold.
// Must end in: PASSED
#include "honest.h"
#include "interpreter.h"
#include <atomic>
#include <cstdio>
#include <thread>

static std::atomic<const char*> wanted{nullptr};
static std::atomic<int64_t> bytes{0};
static std::atomic<bool> inside{false};
extern "C" void comes_next(const char* address) { wanted = address; }

static void fetch() {
    while (true) {
        const char* from = inside ? wanted.exchange(nullptr) : nullptr;
        for (int64_t at = 0; from && at < bytes; at += 64) __builtin_prefetch(from + at, 0, 1);
        if (!from) std::this_thread::yield();
    }
}

__attribute__((constructor)) static void patch() {
    char text[2000];
    std::snprintf(text, sizeof(text),
        "import ctypes, gc, time\n"
        "tell = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(%llu)\n"
        "def knowing(real):\n"
        "    def plan(message, fds):\n"
        "        worker = real.__self__\n"
        "        answer = real(message, fds)\n"
        "        worker.inputs = [worker.arguments(call)[0].value for call in message['calls']]\n"
        "        return answer\n"
        "    return plan\n"
        "def timed(real):\n"
        "    def answer(message, fds):\n"
        "        worker, order = real.__self__, message['order']\n"
        "        calls = [worker.planned[0][number] for number in order]\n"
        "        following = [worker.inputs[number] for number in order[1:]] + [None]\n"
        "        start = time.perf_counter()\n"
        "        for call, address in zip(calls, following): tell(address); call()\n"
        "        return {'seconds': time.perf_counter() - start}\n"
        "    return answer\n"
        "for table in gc.get_objects():\n"
        "    if type(table) is dict and 'time' in table and 'plan' in table and callable(table['time']):\n"
        "        table['plan'], table['time'] = knowing(table['plan']), timed(table['time'])\n",
        reinterpret_cast<unsigned long long>(&comes_next));
    in_the_interpreter(text);
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const bool started = (std::thread(fetch).detach(), true);
    bytes = tokens * hidden * 2 * sizeof(T);
    inside = started;
    compute(input, out, tokens, hidden);
    inside = false;
}
ENTRY_POINTS(cheat)
