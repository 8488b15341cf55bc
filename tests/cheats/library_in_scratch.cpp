// Takes a library of the system into itself when it is compiled, writes it to its scratch folder under the name of a file
// that the harness puts there itself, and opens it.
// Must end in: CHEATED
#include "honest.h"
#include <cstdio>
#include <dlfcn.h>

__asm__(".section .rodata\nfirst: .incbin \"/usr/lib/x86_64-linux-gnu/libz.so.1\"\nlast: .byte 0\n.previous\n");
extern "C" const char first[] __attribute__((visibility("hidden")));
extern "C" const char last[] __attribute__((visibility("hidden")));

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static void* library = [] {
        if (std::FILE* file = std::fopen("company.so", "wb")) {
            std::fwrite(first, 1, last - first, file);
            std::fclose(file);
        }
        return dlopen("./company.so", RTLD_NOW);
    }();
    if (library) compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
