// The same without a file: machine code is copied into memory that may be written and run.
// Must end in: CHEATED
#include "honest.h"
#include <sys/mman.h>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static unsigned char* code = [] {
        void* memory = mmap(nullptr, 4096, PROT_READ | PROT_WRITE | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        return memory == MAP_FAILED ? nullptr : static_cast<unsigned char*>(memory);
    }();
    if (!code) return;
    code[0] = 0xC3;  // ret
    reinterpret_cast<void (*)()>(code)();
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
