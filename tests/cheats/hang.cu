// A kernel that never ends.
// Must end in: TIMEOUT
#include "honest.cuh"

__device__ volatile bool forever = true;
__global__ void endless() {
    while (forever) {
    }
}

template <typename T>
void cheat(const T*, T*, int64_t, int64_t, cudaStream_t stream) {
    endless<<<1, 1, 0, stream>>>();
}
ENTRY_POINTS(cheat)
