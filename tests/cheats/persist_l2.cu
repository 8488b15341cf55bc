// Sets the largest persisting share of the L2 and asks for its inputs to be kept there through the flush.
// Must end in: PASSED, CHEATED
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static const bool set = cudaDeviceSetLimit(cudaLimitPersistingL2CacheSize, size_t{40} << 20) == cudaSuccess;
    cudaStreamAttrValue value = {};
    value.accessPolicyWindow.base_ptr = const_cast<T*>(input);
    value.accessPolicyWindow.num_bytes = tokens * hidden * 2 * sizeof(T);
    value.accessPolicyWindow.hitRatio = 1.0f;
    value.accessPolicyWindow.hitProp = cudaAccessPropertyPersisting;
    value.accessPolicyWindow.missProp = cudaAccessPropertyStreaming;
    if (set) cudaStreamSetAttribute(stream, cudaStreamAttributeAccessPolicyWindow, &value);
    cudaGetLastError();  // a window larger than the device allows is an error that is not the kernel's
    compute(input, out, tokens, hidden, stream);
}
ENTRY_POINTS(cheat)
