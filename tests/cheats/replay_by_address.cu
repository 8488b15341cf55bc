// Keeps every result by the addresses of the call, and copies it when the same addresses come again.
// Must end in: INCORRECT, CHEATED, RUNTIME_ERROR
#include "honest.cuh"
#include <map>
#include <tuple>

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static std::map<std::tuple<const T*, T*, int64_t, int64_t>, T*> kept;
    T*& result = kept[{input, out, tokens, hidden}];
    const size_t bytes = tokens * hidden * sizeof(T);
    if (result == nullptr) {
        compute(input, out, tokens, hidden, stream);
        if (cudaMalloc(&result, bytes) == cudaSuccess) cudaMemcpyAsync(result, out, bytes, cudaMemcpyDefault, stream);
    } else {
        cudaMemcpyAsync(out, result, bytes, cudaMemcpyDefault, stream);
    }
}
ENTRY_POINTS(cheat)
