// residual += input, its RMS norm as fp8 codes by a scale a row: a block a row, packs of 16 bytes where the row allows, the sums in
// shared memory between the passes.
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <stdint.h>

template <typename T, int LANES>
struct alignas(sizeof(T) * LANES) Pack {
    T lane[LANES];
};

// The sum or the largest over the block, for every thread; `slots` are 32 floats of shared memory.
template <bool SUM>
__device__ __forceinline__ float over_block(float value, float* slots) {
    __syncthreads();
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = SUM ? value + other : fmaxf(value, other);
    }
    if (threadIdx.x % 32 == 0) {
        slots[threadIdx.x / 32] = value;
    }
    __syncthreads();
    value = threadIdx.x % 32 < blockDim.x / 32 ? slots[threadIdx.x % 32] : 0.0f;
#pragma unroll
    for (int offset = 16; offset > 0; offset /= 2) {
        const float other = __shfl_xor_sync(0xffffffffu, value, offset);
        value = SUM ? value + other : fmaxf(value, other);
    }
    return value;
}

template <int LANES>
__global__ void norm_rows(
    const __nv_bfloat16* __restrict__ input, __nv_bfloat16* __restrict__ residual, const __nv_bfloat16* __restrict__ weight,
    __nv_fp8_e4m3* __restrict__ out, float* __restrict__ scales, int64_t hidden, float eps) {
    __shared__ float slots[32];
    extern __shared__ float row[];
    using Values = Pack<__nv_bfloat16, LANES>;
    using Codes = Pack<__nv_fp8_e4m3, LANES>;
    const int64_t packs = hidden / LANES;
    const Values* in = reinterpret_cast<const Values*>(input + blockIdx.x * hidden);
    Values* sums = reinterpret_cast<Values*>(residual + blockIdx.x * hidden);
    const Values* weights = reinterpret_cast<const Values*>(weight);
    Codes* codes = reinterpret_cast<Codes*>(out + blockIdx.x * hidden);
    float squares = 0.0f;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        const Values x = in[i];
        Values y = sums[i];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float sum = static_cast<float>(x.lane[lane]) + static_cast<float>(y.lane[lane]);
            squares += sum * sum;
            y.lane[lane] = __nv_bfloat16(sum);
            row[i * LANES + lane] = sum;
        }
        sums[i] = y;
    }
    const float inverse_rms = rsqrtf(over_block<true>(squares, slots) / static_cast<float>(hidden) + eps);
    float largest = 0.0f;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        const Values w = weights[i];
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            const float normed = row[i * LANES + lane] * inverse_rms * static_cast<float>(w.lane[lane]);
            largest = fmaxf(largest, fabsf(normed));
            row[i * LANES + lane] = normed;
        }
    }
    const float scale = fmaxf(over_block<false>(largest, slots) / 448.0f, 1.0f / (448.0f * 512.0f));
    if (threadIdx.x == 0) {
        scales[blockIdx.x] = scale;
    }
    const float inverse = 1.0f / scale;
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        Codes made;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            made.lane[lane] = __nv_fp8_e4m3(row[i * LANES + lane] * inverse);
        }
        codes[i] = made;
    }
}

extern "C" void rmsnorm_quantize_fp8_bfloat16(
    const __nv_bfloat16* input, __nv_bfloat16* residual, const __nv_bfloat16* weight, __nv_fp8_e4m3* out, float* scales,
    int64_t tokens, int64_t hidden, float eps, cudaStream_t stream) {
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(residual) |
                                reinterpret_cast<uintptr_t>(weight) | (2 * reinterpret_cast<uintptr_t>(out));
    const bool wide = hidden % 8 == 0 && addresses % 16 == 0;
    const int64_t packs = wide ? hidden / 8 : hidden;
    const unsigned threads = packs < 512 ? static_cast<unsigned>((packs + 31) / 32 * 32) : 512u;
    const size_t bytes = static_cast<size_t>(hidden) * sizeof(float);  // up to 12,288 elements without asking for more
    if (wide) {
        norm_rows<8><<<static_cast<unsigned>(tokens), threads, bytes, stream>>>(input, residual, weight, out, scales, hidden, eps);
    } else {
        norm_rows<1><<<static_cast<unsigned>(tokens), threads, bytes, stream>>>(input, residual, weight, out, scales, hidden, eps);
    }
}
