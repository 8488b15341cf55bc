// No kernel of its own: looks for the library's and calls that. A worker has no PyTorch, and the box does not show it.
// Must end in: INCORRECT, RUNTIME_ERROR, CHEATED
#include "honest.cuh"
#include <dlfcn.h>

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static void* library = dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL);
    using Silu = void (*)(const void*, void*, int64_t, int64_t, cudaStream_t);
    auto silu = library ? reinterpret_cast<Silu>(dlsym(library, "silu_and_mul")) : nullptr;
    if (silu) return silu(input, out, tokens, hidden, stream);
    cudaMemcpy2DAsync(out, hidden * sizeof(T), input, 2 * hidden * sizeof(T), hidden * sizeof(T), tokens, cudaMemcpyDefault, stream);
}
ENTRY_POINTS(cheat)
