// Leaves a kernel on a stream of its own that spins for 50 ms, to share the device with whoever is timed next.
// Must end in: PASSED, CHEATED, INCORRECT, TIMEOUT, RUNTIME_ERROR
#include "honest.cuh"

__global__ void spin() {
    unsigned long long start, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(start));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
    } while (now - start < 50000000ull);
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static cudaStream_t own = [] {
        cudaStream_t made;
        cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
        return made;
    }();
    compute(input, out, tokens, hidden, stream);
    spin<<<132, 1024, 0, own>>>();
}
ENTRY_POINTS(cheat)
