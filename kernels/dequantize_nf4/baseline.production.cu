// Weights from NF4 codes: a thread four bytes of codes and 16 bytes of weights, the table in shared memory.
#include <cuda_bf16.h>
#include <stdint.h>

template <typename T, int LANES>
struct alignas(sizeof(T) * LANES) Pack {
    T lane[LANES];
};

__constant__ float NF4[16] = {
    -1.0f, -0.6961928009986877f, -0.5250730514526367f, -0.39491748809814453f,
    -0.28444138169288635f, -0.18477343022823334f, -0.09105003625154495f, 0.0f,
    0.07958029955625534f, 0.16093020141124725f, 0.24611230194568634f, 0.33791524171829224f,
    0.44070982933044434f, 0.5626170039176941f, 0.7229568362236023f, 1.0f};

constexpr int THREADS = 256;

template <bool WIDE>
__global__ void __launch_bounds__(THREADS) dequantize(
    const uint8_t* __restrict__ packed, const float* __restrict__ absmax, __nv_bfloat16* __restrict__ out, int64_t words) {
    __shared__ float table[16];
    if (threadIdx.x < 16) {
        table[threadIdx.x] = NF4[threadIdx.x];
    }
    __syncthreads();
    const int64_t stride = static_cast<int64_t>(gridDim.x) * THREADS;
    for (int64_t i = static_cast<int64_t>(blockIdx.x) * THREADS + threadIdx.x; i < words; i += stride) {
        Pack<uint8_t, 4> codes;
        if constexpr (WIDE) {
            codes = reinterpret_cast<const Pack<uint8_t, 4>*>(packed)[i];
        } else {
#pragma unroll
            for (int lane = 0; lane < 4; ++lane) {
                codes.lane[lane] = packed[4 * i + lane];
            }
        }
        const float scale = absmax[i / 8];
        Pack<__nv_bfloat16, 8> made;
#pragma unroll
        for (int lane = 0; lane < 4; ++lane) {
            made.lane[2 * lane] = __nv_bfloat16(table[codes.lane[lane] >> 4] * scale);
            made.lane[2 * lane + 1] = __nv_bfloat16(table[codes.lane[lane] & 15] * scale);
        }
        if constexpr (WIDE) {
            reinterpret_cast<Pack<__nv_bfloat16, 8>*>(out)[i] = made;
        } else {
#pragma unroll
            for (int lane = 0; lane < 8; ++lane) {
                out[8 * i + lane] = made.lane[lane];
            }
        }
    }
}

extern "C" void dequantize_nf4_bfloat16(
    const uint8_t* packed, const float* absmax, __nv_bfloat16* out, int64_t blocks, cudaStream_t stream) {
    const int64_t words = blocks * 8;
    const int64_t wanted = (words + THREADS - 1) / THREADS;
    const unsigned grid = static_cast<unsigned>(wanted < 65536 ? wanted : 65536);
    if ((reinterpret_cast<uintptr_t>(out) | (4 * reinterpret_cast<uintptr_t>(packed))) % 16 == 0) {
        dequantize<true><<<grid, THREADS, 0, stream>>>(packed, absmax, out, words);
    } else {
        dequantize<false><<<grid, THREADS, 0, stream>>>(packed, absmax, out, words);
    }
}
