// silu(gate) * up as fp8 codes, each 128 elements by a scale of their own: sixteen threads a group, 16 bytes of each half a thread.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
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

template <bool WIDE, typename T, int LANES>
__device__ __forceinline__ void store(T* to, const Pack<T, LANES>& held) {
    if constexpr (WIDE) {
        *reinterpret_cast<Pack<T, LANES>*>(to) = held;
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            to[lane] = held.lane[lane];
        }
    }
}

constexpr int THREADS = 256;
constexpr int TEAM = 16;

template <bool WIDE>
__global__ void __launch_bounds__(THREADS) activate_groups(
    const __nv_bfloat16* __restrict__ input, __nv_fp8_e4m3* __restrict__ out, float* __restrict__ scales, int64_t groups,
    int64_t hidden) {
    const int64_t asked = static_cast<int64_t>(blockIdx.x) * (THREADS / TEAM) + threadIdx.x / TEAM;
    const int64_t group = asked < groups ? asked : groups - 1;
    const int64_t at = group * 128 + threadIdx.x % TEAM * 8;
    const __nv_bfloat16* from = input + at / hidden * hidden + at;
    Pack<__nv_bfloat16, 8> gate;
    Pack<__nv_bfloat16, 8> up;
    load<WIDE>(gate, from);
    load<WIDE>(up, from + hidden);
    float value[8];
    float largest = 1e-10f;
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
        const float x = static_cast<float>(gate.lane[lane]);
        value[lane] = x / (1.0f + __expf(-x)) * static_cast<float>(up.lane[lane]);
        largest = fmaxf(largest, fabsf(value[lane]));
    }
#pragma unroll
    for (int offset = TEAM / 2; offset > 0; offset /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, offset));
    }
    const float scale = largest / 448.0f;
    Pack<__nv_fp8_e4m3, 8> codes;
#pragma unroll
    for (int lane = 0; lane < 8; ++lane) {
        codes.lane[lane] = __nv_fp8_e4m3(value[lane] / scale);
    }
    if (asked < groups) {
        store<WIDE>(out + at, codes);
        if (threadIdx.x % TEAM == 0) {
            scales[group] = scale;
        }
    }
}

extern "C" void silu_and_mul_quantize_fp8_bfloat16(
    const __nv_bfloat16* input, __nv_fp8_e4m3* out, float* scales, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const int64_t groups = tokens * (hidden / 128);
    const unsigned blocks = static_cast<unsigned>((groups + THREADS / TEAM - 1) / (THREADS / TEAM));
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | (2 * reinterpret_cast<uintptr_t>(out));
    if (addresses % 16 == 0) {
        activate_groups<true><<<blocks, THREADS, 0, stream>>>(input, out, scales, groups, hidden);
    } else {
        activate_groups<false><<<blocks, THREADS, 0, stream>>>(input, out, scales, groups, hidden);
    }
}
