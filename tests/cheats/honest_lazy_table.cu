// A table of silu of all 65536 float16 values, filled on the device at the first call. It holds no input of the call.
// Must end in: PASSED
#include "honest.cuh"

__global__ void fill(float* table) {
    const unsigned bits = blockIdx.x * blockDim.x + threadIdx.x;
    const float x = __half2float(__ushort_as_half(static_cast<unsigned short>(bits)));
    table[bits] = x / (1.0f + __expf(-x));
}

__global__ void by_table(const __half* input, __half* out, int64_t hidden, const float* table) {
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        const float silu = table[__half_as_ushort(input[blockIdx.x * 2 * hidden + i])];
        store(out + blockIdx.x * hidden + i, silu * to_float(input[blockIdx.x * 2 * hidden + hidden + i]));
    }
}

template <typename T>
void kernel(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    compute(input, out, tokens, hidden, stream);
}

template <>
void kernel(const __half* input, __half* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static float* table = [] {
        float* made = nullptr;
        cudaMalloc(&made, 65536 * sizeof(float));
        fill<<<256, 256>>>(made);
        cudaDeviceSynchronize();
        return made;
    }();
    by_table<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, out, hidden, table);
}
ENTRY_POINTS(kernel)
