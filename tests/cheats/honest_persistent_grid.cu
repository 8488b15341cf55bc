// As many blocks as the device runs at once, which take rows until none is left.
// Must end in: PASSED
#include "honest.cuh"

template <typename T>
__global__ void persistent(const T* input, T* out, int64_t tokens, int64_t hidden) {
    for (int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
        for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) element(input, out, token, i, hidden);
    }
}

template <typename T>
void kernel(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static const int units = [] {
        int count = 0;
        cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, 0);
        return count;
    }();
    persistent<<<tokens < 4 * units ? static_cast<unsigned>(tokens) : 4 * units, 256, 0, stream>>>(input, out, tokens, hidden);
}
ENTRY_POINTS(kernel)
