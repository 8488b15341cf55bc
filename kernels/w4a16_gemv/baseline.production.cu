// Rows of 4-bit weights times a vector: a warp a row, 16 bytes of codes a lane and step, sums joined by shuffles.
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

constexpr int ROWS = 4;

template <bool WIDE>
__global__ void __launch_bounds__(32 * ROWS) rows_times_vector(
    const __nv_bfloat16* __restrict__ x, const uint8_t* __restrict__ codes, const __nv_bfloat16* __restrict__ scales,
    const uint8_t* __restrict__ zeros, __nv_bfloat16* __restrict__ out, int64_t n, int64_t k) {
    const int64_t row = static_cast<int64_t>(blockIdx.x) * ROWS + threadIdx.x / 32;
    if (row >= n) {
        return;
    }
    const int64_t groups = k / 128;
    float sum = 0.0f;
    for (int64_t at = threadIdx.x % 32 * 32; at < k; at += 1024) {  // 32 weights, all of one group
        Pack<uint8_t, 16> held;
        load<WIDE>(held, codes + (row * k + at) / 2);
        const float zero = static_cast<float>(zeros[row * groups + at / 128]);
        float part = 0.0f;
#pragma unroll
        for (int quarter = 0; quarter < 4; ++quarter) {
            Pack<__nv_bfloat16, 8> given;
            load<WIDE>(given, x + at + quarter * 8);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint8_t two = held.lane[quarter * 4 + i];
                part += static_cast<float>(given.lane[2 * i]) * (static_cast<float>(two & 15) - zero);
                part += static_cast<float>(given.lane[2 * i + 1]) * (static_cast<float>(two >> 4) - zero);
            }
        }
        sum += part * static_cast<float>(scales[row * groups + at / 128]);
    }
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        sum += __shfl_xor_sync(0xffffffffu, sum, offset);
    }
    if (threadIdx.x % 32 == 0) {
        out[row] = __nv_bfloat16(sum);
    }
}

extern "C" void w4a16_gemv_bfloat16(
    const __nv_bfloat16* x, const uint8_t* codes, const __nv_bfloat16* scales, const uint8_t* zeros, __nv_bfloat16* out,
    int64_t n, int64_t k, cudaStream_t stream) {
    const unsigned blocks = static_cast<unsigned>((n + ROWS - 1) / ROWS);
    if ((reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(codes)) % 16 == 0) {
        rows_times_vector<true><<<blocks, 32 * ROWS, 0, stream>>>(x, codes, scales, zeros, out, n, k);
    } else {
        rows_times_vector<false><<<blocks, 32 * ROWS, 0, stream>>>(x, codes, scales, zeros, out, n, k);
    }
}
