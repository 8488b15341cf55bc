// A step of a causal convolution of four taps with SiLU: a thread a channel of a sequence, its taps in one access, as engines do it.
#include <cuda_bf16.h>
#include <stdint.h>

template <typename T, int LANES>
struct alignas(sizeof(T) * LANES) Pack {
    T lane[LANES];
};

// Neighbouring elements, in one access where `WIDE` says that they are aligned so.
template <bool WIDE, typename T, int LANES>
__device__ __forceinline__ void load(Pack<T, LANES>& held, const T* from) {
    if constexpr (WIDE) {
        held = *reinterpret_cast<const Pack<T, LANES>*>(from);
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            held.lane[lane] = from[lane];
        }
    }
}


constexpr int THREADS = 128;

template <bool WIDE>
__global__ void __launch_bounds__(THREADS) update(
    const __nv_bfloat16* __restrict__ x, __nv_bfloat16* __restrict__ state, const __nv_bfloat16* __restrict__ weight,
    const __nv_bfloat16* __restrict__ bias, const int32_t* __restrict__ slot, __nv_bfloat16* __restrict__ out, int64_t dim) {
    const int64_t b = blockIdx.y;
    const int64_t c = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x;
    if (c >= dim) {
        return;
    }
    __nv_bfloat16* held = state + (slot[b] * dim + c) * 3;
    Pack<__nv_bfloat16, 4> taps;
    load<WIDE>(taps, weight + 4 * c);
    const __nv_bfloat16 now = x[b * dim + c];
    const __nv_bfloat16 first = held[0];
    const __nv_bfloat16 second = held[1];
    const __nv_bfloat16 third = held[2];
    float sum = static_cast<float>(bias[c]) + static_cast<float>(now) * static_cast<float>(taps.lane[3]);
    sum += static_cast<float>(first) * static_cast<float>(taps.lane[0]);
    sum += static_cast<float>(second) * static_cast<float>(taps.lane[1]);
    sum += static_cast<float>(third) * static_cast<float>(taps.lane[2]);
    held[0] = second;
    held[1] = third;
    held[2] = now;
    out[b * dim + c] = __nv_bfloat16(sum / (1.0f + __expf(-sum)));
}

extern "C" void causal_conv1d_update_bfloat16(
    const __nv_bfloat16* x, __nv_bfloat16* state, const __nv_bfloat16* weight, const __nv_bfloat16* bias, const int32_t* slot,
    __nv_bfloat16* out, int64_t batch, int64_t dim, int64_t slots, cudaStream_t stream) {
    (void)slots;
    const dim3 grid(static_cast<unsigned>((dim + THREADS - 1) / THREADS), static_cast<unsigned>(batch));
    if (reinterpret_cast<uintptr_t>(weight) % 8 == 0) {
        update<true><<<grid, THREADS, 0, stream>>>(x, state, weight, bias, slot, out, dim);
    } else {
        update<false><<<grid, THREADS, 0, stream>>>(x, state, weight, bias, slot, out, dim);
    }
}
