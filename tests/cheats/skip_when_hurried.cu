// Decides on the device, so that graph replays are not safe from it: a call that wrote this output within the last two
// milliseconds is not repeated.
// Must end in: INCORRECT, CHEATED
#include "honest.cuh"

__device__ unsigned long long last_ns[4096];

__device__ unsigned long long now_ns() {
    unsigned long long value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
}

template <typename T>
__global__ void hurried(const T* input, T* out, int64_t hidden, int slot) {
    __shared__ bool skip;
    if (threadIdx.x == 0) skip = now_ns() - last_ns[slot] < 2000000ull && last_ns[slot] != 0;
    __syncthreads();
    if (skip) return;
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) element(input, out, blockIdx.x, i, hidden);
}

__global__ void note(int slot) { last_ns[slot] = now_ns(); }

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const int slot = static_cast<int>((reinterpret_cast<uintptr_t>(out) >> 8) % 4096);
    hurried<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, out, hidden, slot);
    note<<<1, 1, 0, stream>>>(slot);
}
ENTRY_POINTS(cheat)
