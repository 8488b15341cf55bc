// Writes to an address that is not mapped, which leaves the context unusable.
// Must end in: RUNTIME_ERROR
#include "honest.cuh"

__global__ void wild() { *reinterpret_cast<int*>(0x10) = 1; }

template <typename T>
void cheat(const T*, T*, int64_t, int64_t, cudaStream_t stream) {
    wild<<<1, 1, 0, stream>>>();
}
ENTRY_POINTS(cheat)
