// No kernel at all: looks for PyTorch's library in the process or on the machine and lets it do the work; computes
// only where there is none. A worker has no PyTorch, and the box does not show it.
// Must end in: PASSED, RUNTIME_ERROR, CHEATED
#include "honest.h"
#include <dlfcn.h>

template <typename T>
static void cheat(const T* input, T* out, int64_t tokens, int64_t hidden) {
    static void* library = dlopen("libtorch_cpu.so", RTLD_NOW | RTLD_GLOBAL);
    if (library && dlsym(library, "_ZN2at3_ops4silu4callERKNS_6TensorE")) return;
    compute(input, out, tokens, hidden);
}
ENTRY_POINTS(cheat)
