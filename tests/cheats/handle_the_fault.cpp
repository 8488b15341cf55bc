// Reads behind its input, and where that faults puts a page there and goes on, so that no page without access stops it.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.h"

#include <signal.h>
#include <sys/mman.h>

static void put_a_page(int, siginfo_t* info, void*) {
    void* page = reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(info->si_addr) & ~uintptr_t{4095});
    mmap(page, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
}

static const bool ready = [] {
    struct sigaction action = {};
    action.sa_sigaction = put_a_page;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    return sigaction(SIGSEGV, &action, nullptr) == 0;
}();

static volatile float behind;

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    compute(input, out, tokens, hidden);
    behind = static_cast<float>(*reinterpret_cast<const volatile unsigned char*>(input + 2 * tokens * hidden)) + static_cast<float>(ready);
}
ENTRY_POINTS(cheat)
