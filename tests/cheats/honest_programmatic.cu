// Launched programmatically where its neighbours are, as FlashInfer's kernels: it begins before the kernel ahead of it has
// ended, and waits before it reads.
// Must end in: PASSED
#include "honest.cuh"

extern "C" {
int enable_pdl = 0;  // set by whoever launches: whether its neighbours take part
}

template <typename T>
__global__ void rows_behind(const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) element(input, out, blockIdx.x, i, hidden);
}

template <typename T>
void kernel(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = enable_pdl;
    cudaLaunchConfig_t config = {};
    config.gridDim = static_cast<unsigned>(tokens);
    config.blockDim = 512;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    cudaLaunchKernelEx(&config, rows_behind<T>, input, out, hidden);
}
ENTRY_POINTS(kernel)
