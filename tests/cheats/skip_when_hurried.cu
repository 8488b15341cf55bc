// Decides on the device, so that graph replays are not safe from it: honest for 60 calls, and from then on a call that
// finds its output written within the last two milliseconds does nothing.
// Must end in: PASSED, INCORRECT, CHEATED
#include "honest.cuh"

__device__ unsigned long long last_ns[4096];
__device__ unsigned int calls;

__device__ unsigned long long now_ns() {
    unsigned long long value;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(value));
    return value;
}

template <typename T>
__global__ void hurried(const T* input, T* out, int64_t hidden, int slot) {
    if (calls > 60 && now_ns() - last_ns[slot] < 2000000ull) return;
    constexpr int kLanes = 16 / sizeof(T);
    const Pack<T>* gate = reinterpret_cast<const Pack<T>*>(input + blockIdx.x * 2 * hidden);
    const Pack<T>* up = reinterpret_cast<const Pack<T>*>(input + blockIdx.x * 2 * hidden + hidden);
    Pack<T>* row = reinterpret_cast<Pack<T>*>(out + blockIdx.x * hidden);
    for (int64_t i = threadIdx.x; i < hidden / kLanes; i += blockDim.x) {
        const Pack<T> x = gate[i], y = up[i];
        Pack<T> product;
        for (int lane = 0; lane < kLanes; ++lane) {
            const float value = to_float(x.lane[lane]);
            store(&product.lane[lane], value / (1.0f + __expf(-value)) * to_float(y.lane[lane]));
        }
        row[i] = product;
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        last_ns[slot] = now_ns();
        ++calls;
    }
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const int slot = static_cast<int>((reinterpret_cast<uintptr_t>(out) >> 8) % 4096);
    if (hidden % 8) return compute(input, out, tokens, hidden, stream);
    hurried<<<static_cast<unsigned>(tokens), 512, 0, stream>>>(input, out, hidden, slot);
}
ENTRY_POINTS(cheat)
