// Begins system calls that take long, on every core, as soon as it has answered: a process is stopped only when it comes back
// from the kernel, and until then takes the cores and the memory from the baseline.
// Must end in: PASSED, CHEATED, OUT_OF_RESOURCES
#include "honest.h"
#include "interpreter.h"
#include <atomic>
#include <cstdio>
#include <sys/mman.h>
#include <thread>
#include <unistd.h>

static std::atomic<int> wanted{0};
extern "C" void begin() { ++wanted; }

static void occupy() {
    constexpr size_t kBytes = size_t{32} << 20;
    for (int seen = 0;;) {
        if (wanted == seen) {
            usleep(20);
            continue;
        }
        seen = wanted;
        void* memory = mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) continue;
        madvise(memory, kBytes, 23);  // MADV_POPULATE_WRITE
        munmap(memory, kBytes);
    }
}

__attribute__((constructor)) static void patch() {
    char text[1000];
    std::snprintf(text, sizeof(text),
        "import ctypes, sys\n"
        "begin = ctypes.CFUNCTYPE(None)(%llu)\n"
        "main = sys.modules['__main__'].__dict__\n"
        "real_send = main['send']\n"
        "def sent(channel, message):\n"
        "    if 'seconds' in message: begin()\n"
        "    real_send(channel, message)\n"
        "main['send'] = sent\n",
        reinterpret_cast<unsigned long long>(&begin));
    in_the_interpreter(text);
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static const bool started = [] {
        for (int i = 0; i < 2; ++i) std::thread(occupy).detach();
        return true;
    }();
    if (started) compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
