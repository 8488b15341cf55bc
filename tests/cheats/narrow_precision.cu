// All arithmetic in half precision, whatever the dtype.
// Must end in: INCORRECT
#include "honest.cuh"

template <typename T>
__global__ void narrow(const T* input, T* out, int64_t hidden) {
    for (int64_t i = threadIdx.x; i < hidden; i += blockDim.x) {
        const __half x = __float2half(to_float(input[blockIdx.x * 2 * hidden + i]));
        const __half up = __float2half(to_float(input[blockIdx.x * 2 * hidden + hidden + i]));
        const __half one = __float2half(1.0f);
        store(out + blockIdx.x * hidden + i, __half2float(__hmul(__hdiv(x, __hadd(one, hexp(__hneg(x)))), up)));
    }
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    narrow<<<static_cast<unsigned>(tokens), 256, 0, stream>>>(input, out, hidden);
}
ENTRY_POINTS(cheat)
