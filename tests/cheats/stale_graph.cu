// Captures a graph of its first call and replays it for all others, whatever addresses they bring.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.cuh"

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static cudaGraphExec_t kept = nullptr;
    static bool first = true;
    if (first) {
        first = false;
        cudaStream_t own;
        cudaGraph_t graph;
        cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
        cudaStreamBeginCapture(own, cudaStreamCaptureModeRelaxed);
        compute(input, out, tokens, hidden, own);
        cudaStreamEndCapture(own, &graph);
        cudaGraphInstantiate(&kept, graph, 0);
    }
    cudaGraphLaunch(kept, stream);
}
ENTRY_POINTS(cheat)
