// Sums of a token's experts: a block a token, a thread a pack of columns, 16 bytes where the row allows; four experts in flight.
#include <cuda_bf16.h>
#include <stdint.h>

template <typename T, int LANES>
struct alignas(sizeof(T) * LANES) Pack {
    T lane[LANES];
};

template <int LANES>
__global__ void sum_experts(
    const __nv_bfloat16* __restrict__ input, __nv_bfloat16* __restrict__ out, int64_t topk, int64_t hidden) {
    using Values = Pack<__nv_bfloat16, LANES>;
    const int64_t packs = hidden / LANES;
    const Values* rows = reinterpret_cast<const Values*>(input + blockIdx.x * topk * hidden);
    Values* to = reinterpret_cast<Values*>(out + blockIdx.x * hidden);
    for (int64_t i = threadIdx.x; i < packs; i += blockDim.x) {
        float sum[LANES] = {};
#pragma unroll 4
        for (int64_t k = 0; k < topk; ++k) {
            const Values held = rows[k * packs + i];
#pragma unroll
            for (int lane = 0; lane < LANES; ++lane) {
                sum[lane] += static_cast<float>(held.lane[lane]);
            }
        }
        Values made;
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            made.lane[lane] = __nv_bfloat16(sum[lane]);
        }
        to[i] = made;
    }
}

extern "C" void moe_sum_bfloat16(
    const __nv_bfloat16* input, __nv_bfloat16* out, int64_t tokens, int64_t topk, int64_t hidden, cudaStream_t stream) {
    const uintptr_t addresses = reinterpret_cast<uintptr_t>(input) | reinterpret_cast<uintptr_t>(out);
    const unsigned blocks = static_cast<unsigned>(tokens);
    if (hidden % 8 == 0 && addresses % 16 == 0) {
        const unsigned threads = hidden < 4096 ? 256u : 512u;
        sum_experts<8><<<blocks, threads, 0, stream>>>(input, out, topk, hidden);
    } else {
        sum_experts<1><<<blocks, 256, 0, stream>>>(input, out, topk, hidden);
    }
}
