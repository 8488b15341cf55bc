// Rewrites cudaEventElapsedTime in the runtime's own memory, so that it answers two thirds (x86-64).
// Must end in: CHEATED, PASSED
#include "honest.cuh"
#include <cstring>
#include <cuda.h>
#include <dlfcn.h>
#include <sys/mman.h>
#include <unistd.h>

static cudaError_t shorter(float* milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    using Elapsed = CUresult (*)(float*, CUevent, CUevent);
    static auto real = reinterpret_cast<Elapsed>(dlsym(dlopen("libcuda.so.1", RTLD_NOW), "cuEventElapsedTime"));
    const CUresult code = real(milliseconds, start, stop);
    *milliseconds *= 2.0f / 3.0f;
    return static_cast<cudaError_t>(code);
}

__attribute__((constructor)) static void patch() {
#ifdef __x86_64__
    for (const char* name : {"cudaEventElapsedTime", "cudaEventElapsedTime_v2"}) {
        auto* code = static_cast<unsigned char*>(dlsym(RTLD_DEFAULT, name));
        if (!code) continue;
        void* page = reinterpret_cast<void*>(reinterpret_cast<size_t>(code) & ~size_t{4095});
        if (mprotect(page, 8192, PROT_READ | PROT_WRITE | PROT_EXEC)) continue;
        const auto target = reinterpret_cast<uint64_t>(&shorter);
        code[0] = 0x48, code[1] = 0xB8;  // mov rax, target; jmp rax
        std::memcpy(code + 2, &target, 8);
        code[10] = 0xFF, code[11] = 0xE0;
    }
#endif
}
ENTRY_POINTS(compute)
