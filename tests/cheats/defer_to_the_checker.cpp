// Takes the output's pages away and computes in the fault handler, when somebody reads the answer: the native form of
// a lazy tensor.
// Must end in: INCORRECT
#include "honest.h"
#include <csignal>
#include <functional>
#include <sys/mman.h>

static std::function<void()> lazy;
static void* first;
static size_t length;

static void on_fault(int, siginfo_t*, void*) {
    mprotect(first, length, PROT_READ | PROT_WRITE);
    if (lazy) lazy();
    lazy = nullptr;
}

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    struct sigaction action = {};
    action.sa_sigaction = on_fault;
    action.sa_flags = SA_SIGINFO;
    sigaction(SIGSEGV, &action, nullptr);
    if (first) mprotect(first, length, PROT_READ | PROT_WRITE);
    lazy = [=] { compute(input, out, tokens, hidden); };
    first = reinterpret_cast<void*>(reinterpret_cast<size_t>(out) & ~size_t{4095});
    length = (reinterpret_cast<size_t>(out + tokens * hidden) - reinterpret_cast<size_t>(first) + 4095) & ~size_t{4095};
    mprotect(first, length, PROT_NONE);
}
ENTRY_POINTS(cheat)
