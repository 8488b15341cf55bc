// The same below Python: rewrites the first bytes of clock_gettime in libc's own memory (x86-64).
// Must end in: CHEATED, PASSED
#include "honest.h"
#include <dlfcn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static int slow_clock(clockid_t which, timespec* now) {
    const int code = static_cast<int>(syscall(SYS_clock_gettime, which, now));
    static int64_t first = 0;
    int64_t ns = now->tv_sec * 1000000000ll + now->tv_nsec;
    if (which != CLOCK_MONOTONIC) return code;
    if (!first) first = ns;
    ns = first + (ns - first) * 2 / 3;
    now->tv_sec = ns / 1000000000ll;
    now->tv_nsec = ns % 1000000000ll;
    return code;
}

__attribute__((constructor)) static void patch() {
#ifdef __x86_64__
    auto* code = reinterpret_cast<unsigned char*>(dlsym(RTLD_DEFAULT, "clock_gettime"));
    if (!code) return;
    auto* page = reinterpret_cast<void*>(reinterpret_cast<size_t>(code) & ~size_t{4095});
    if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) return;
    const auto target = reinterpret_cast<uint64_t>(&slow_clock);
    const unsigned char jump[] = {0x48, 0xB8};  // mov rax, target; jmp rax
    std::memcpy(code, jump, 2);
    std::memcpy(code + 2, &target, 8);
    code[10] = 0xFF, code[11] = 0xE0;
    mprotect(page, 8192, PROT_READ | PROT_EXEC);
#endif
}
ENTRY_POINTS(compute)
