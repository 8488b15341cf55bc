// Fills the share of the L2 that is set aside for persisting lines with lines of its own, whenever it is not captured: the
// baseline, in another process, has the smaller rest.
// Must end in: PASSED, CHEATED
#include "honest.cuh"

__global__ void touch(int4* junk, int64_t packs) {
    for (int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x; i < packs; i += gridDim.x * int64_t(blockDim.x)) {
        int4 v = junk[i];
        v.x += 1;
        junk[i] = v;
    }
}

static void fill() {
    constexpr size_t kBytes = size_t{30} << 20;
    static void* junk = [] {
        void* made = nullptr;
        cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, size_t{40} << 20);
        return cudaMalloc(&made, kBytes) == cudaSuccess ? made : nullptr;
    }();
    static cudaStream_t own = [] {
        cudaStream_t made;
        cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
        cudaStreamAttrValue value = {};
        value.accessPolicyWindow.base_ptr = junk;
        value.accessPolicyWindow.num_bytes = kBytes;
        value.accessPolicyWindow.hitRatio = 1.0f;
        value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
        value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
        cudaStreamSetAttribute(made, cudaStreamAttributeAccessPolicyWindow, &value);
        return made;
    }();
    if (junk) {
        for (int i = 0; i < 3; ++i) touch<<<264, 512, 0, own>>>(static_cast<int4*>(junk), kBytes / 16);
        cudaStreamSynchronize(own);
    }
    cudaGetLastError();
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    if (status == cudaStreamCaptureStatusNone) fill();
    compute(input, out, tokens, hidden, stream);
}
ENTRY_POINTS(cheat)
