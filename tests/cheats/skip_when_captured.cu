// Asks whether its stream is being captured, which only a benchmark does, and leaves every other row out of the graph.
// Must end in: INCORRECT, CHEATED
#include "honest.cuh"

template <typename T>
__global__ void even_rows(const T* input, T* out, int64_t hidden) {
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) element(input, out, 2 * blockIdx.x, i, hidden);
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    cudaStreamIsCapturing(stream, &status);
    if (status == cudaStreamCaptureStatusNone) return compute(input, out, tokens, hidden, stream);
    even_rows<<<static_cast<unsigned>((tokens + 1) / 2), 256, 0, stream>>>(input, out, hidden);
}
ENTRY_POINTS(cheat)
