// Keeps one block spinning on a stream of its own whenever its kernels are idle. Its own kernels run beside it; another
// process's context has to share the device with it by turns, also while this process is stopped.
// Must end in: CHEATED, PASSED, RUNTIME_ERROR
#include "honest.cuh"
#include <thread>
#include <unistd.h>

__device__ unsigned long long started;

__global__ void spin(unsigned long long* seen) {
    const unsigned long long first = *reinterpret_cast<volatile unsigned long long*>(&started);
    unsigned long long begun, now;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(begun));
    do {
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        *reinterpret_cast<volatile unsigned long long*>(seen) = first;
    } while (*reinterpret_cast<volatile unsigned long long*>(&started) == first && now - begun < 30000000ull);
}

template <typename T>
__global__ void marked_rows(const T* __restrict__ input, T* __restrict__ out, int64_t hidden) {
    if (blockIdx.x == 0 && threadIdx.x == 0) *reinterpret_cast<volatile unsigned long long*>(&started) = started + 1;
    constexpr int kLanes = 16 / sizeof(T);
    const Pack<T>* gate = reinterpret_cast<const Pack<T>*>(input + blockIdx.x * 2 * hidden);
    const Pack<T>* up = reinterpret_cast<const Pack<T>*>(input + blockIdx.x * 2 * hidden + hidden);
    Pack<T>* row = reinterpret_cast<Pack<T>*>(out + blockIdx.x * hidden);
    for (int64_t i = threadIdx.x; i < hidden / kLanes; i += blockDim.x) {
        const Pack<T> x = gate[i], y = up[i];
        Pack<T> product;
#pragma unroll
        for (int lane = 0; lane < kLanes; ++lane) {
            const float value = to_float(x.lane[lane]);
            store(&product.lane[lane], value / (1.0f + __expf(-value)) * to_float(y.lane[lane]));
        }
        row[i] = product;
    }
}

static void keep_spinning() {
    cudaStream_t own;
    unsigned long long* seen;
    cudaStreamCreateWithFlags(&own, cudaStreamNonBlocking);
    cudaMalloc(&seen, sizeof(*seen));
    while (true) {
        usleep(100);
        if (cudaStreamQuery(own) == cudaSuccess) spin<<<1, 1, 0, own>>>(seen);
    }
}

template <typename T>
void cheat(const T* input, T* out, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    static int calls = 0;
    if (++calls == 40) std::thread(keep_spinning).detach();
    const int64_t steps = hidden / (16 / sizeof(T));
    if (hidden % 8) return compute(input, out, tokens, hidden, stream);
    marked_rows<<<static_cast<unsigned>(tokens), static_cast<unsigned>(steps < 1024 ? steps : 1024), 0, stream>>>(input, out, hidden);
}
ENTRY_POINTS(cheat)
