// fp8 codes of rows, each by its own scale: a block a row, packs of 16 bytes where the row allows, the row read a second time.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

template <typename T, int LANES>
struct alignas(sizeof(T) * LANES) Pack {
    T lane[LANES];
};

// The largest over the block, for every thread; `slots` are 32 floats of shared memory.
__device__ __forceinline__ float block_max(float value, float* slots) {
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    if (threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? slots[threadIdx.x % 32] : 0.0f;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, offset));
    }
    return value;
}

template <int LANES>
__global__ void quantize_rows(
    const __nv_bfloat16* __restrict__ input, __nv_fp8_e4m3* __restrict__ out, float* __restrict__ scales, int64_t hidden) {
    __shared__ float slots[32];
    using Values = Pack<__nv_bfloat16, LANES>;
    using Codes = Pack<__nv_fp8_e4m3, LANES>;
    const int64_t packs = hidden / LANES;
    const Values* row = reinterpret_cast<const Values*>(input + blockIdx.x * hidden);
    Codes* codes = reinterpret_cast<Codes*>(out + blockIdx.x * hidden);
    float largest = 0.0f;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        const Values values = row[i];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            largest = fmaxf(largest, fabsf(static_cast<float>(values.lane[lane])));
        }
    }
    const float scale = fmaxf(block_max(largest, slots) / 448.0f, 1.0f / (448.0f * 512.0f));
    if (threadIdx.x == 0) {
        scales[blockIdx.x] = scale;
    }
    const float inverse = 1.0f / scale;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        const Values values = row[i];
        Codes made;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            made.lane[lane] = __nv_fp8_e4m3(static_cast<float>(values.lane[lane]) * inverse);
        }
        codes[i] = made;
    }
}

extern "C" void quantize_fp8_per_token_bfloat16(
    const __nv_bfloat16* input, __nv_fp8_e4m3* out, float* scales, int64_t tokens, int64_t hidden, cudaStream_t stream) {
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | (2 * reinterpret_cast<uintptr_t>(out));
    const bool wide = hidden % 8 == 0 && addresses % 16 == 0;
    const int64_t packs = wide ? hidden / 8 : hidden;
    const unsigned threads = packs < 512 ? static_cast<unsigned>((packs + 31) / 32 * 32) : 512u;
    if (wide) {
        quantize_rows<8><<<static_cast<unsigned>(tokens), threads, 0, stream>>>(input, out, scales, hidden);
    } else {
        quantize_rows<1><<<static_cast<unsigned>(tokens), threads, 0, stream>>>(input, out, scales, hidden);
    }
}
