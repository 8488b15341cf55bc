// Tells the stream that is being captured that nothing comes before its kernel, so that calls run beside each other.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    if (status == cudaStreamCaptureStatusActive) {
#if CUDART_VERSION >= 13000
        cudaStreamUpdateCaptureDependencies(stream, nullptr, nullptr, 0, cudaStreamSetCaptureDependencies);
#else
        cudaStreamUpdateCaptureDependencies(stream, nullptr, 0, cudaStreamSetCaptureDependencies);
#endif
    }
    compute(input, out, tokens, hidden, stream);
}
ENTRY_POINTS(cheat)
