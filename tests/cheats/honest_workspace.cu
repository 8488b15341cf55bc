// A workspace that is allocated at the first call and kept, per stream so that two calls in flight do not share it.
// Must end in: PASSED
#include "honest.cuh"
#include <map>
#include <utility>

template <typename T>
__global__ void gates(const T* input, float* workspace, int64_t hidden) {
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float x = to_float(input[blockIdx.x * 2 * hidden + i]);
        workspace[blockIdx.x * hidden + i] = x / (1.0f + __expf(-x));
    }
}

template <typename T>
__global__ void products(const T* input, const float* workspace, T* out, int64_t hidden) {
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float up = to_float(input[blockIdx.x * 2 * hidden + hidden + i]);
        store(out + blockIdx.x * hidden + i, workspace[blockIdx.x * hidden + i] * up);
    }
}

template <typename T>
void kernel(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static std::map<std::pair<cudaStream_t, int64_t>, float*> kept;
    float*& workspace = kept[{stream, tokens * hidden}];
    if (!workspace) cudaMalloc(&workspace, tokens * hidden * sizeof(float));
    gates<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, workspace, hidden);
    products<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, workspace, out, hidden);
}
ENTRY_POINTS(kernel)
