// Half of the rows on a stream of its own, which is forked from and joined to the caller's by events.
// Must end in: PASSED
#include "honest.cuh"

struct Side {
    cudaStream_t stream;
    cudaEvent_t forked, joined;
    Side() {
        cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
        cudaEventCreateWithFlags(&forked, cudaEventDisableTiming);
        cudaEventCreateWithFlags(&joined, cudaEventDisableTiming);
    }
};

template <typename T>
void kernel(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static Side side;
    const int64_t half = tokens / 2;
    if (half) {
        cudaEventRecord(side.forked, stream);
        cudaStreamWaitEvent(side.stream, side.forked, 0);
        compute(input, out, half, hidden, side.stream);
        cudaEventRecord(side.joined, side.stream);
    }
    compute(input + half * 2 * hidden, out + half * hidden, tokens - half, hidden, stream);
    if (half) cudaStreamWaitEvent(stream, side.joined, 0);
}
ENTRY_POINTS(kernel)
