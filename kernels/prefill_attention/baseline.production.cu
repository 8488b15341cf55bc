// Causal attention on tensor cores (FlashAttention-2): a block 64 queries of a head, a warp 16 of them; keys and values by 64 through shared memory,
// running maxima and sums in registers, scores become the second product's operand where they are. Tiles of keys behind all queries are skipped.
#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>

constexpr int THREADS = 128;
constexpr int QUERIES = 64;
constexpr int KEYS = 64;
constexpr int HEAD = 128;
constexpr int STRIDE = HEAD + 8;  // elements from row to row: 8 rows of 4 words touch all 32 banks
constexpr int LANES = 8;
constexpr float NEVER = -1e30f;  // a largest score of no key

struct alignas(2 * LANES) Pack {
    __nv_bfloat16 lane[LANES];
};
struct alignas(4) Pair {
    __nv_bfloat16 lane[2];
};

template <bool WIDE>
__device__ __forceinline__ Pack load(const __nv_bfloat16* from, bool inside) {
    Pack pack;
    if (inside && WIDE) {
        pack = *reinterpret_cast<const Pack*>(from);
    } else {
#pragma unroll
        for (int lane = 0; lane < LANES; ++lane) {
            pack.lane[lane] = inside ? from[lane] : __nv_bfloat16(0.0f);
        }
    }
    return pack;
}

__device__ __forceinline__ uint32_t two(const __nv_bfloat16* at) { return *reinterpret_cast<const uint32_t*>(at); }

__device__ __forceinline__ uint32_t two(float low, float high) {
    Pair pair;
    pair.lane[0] = __nv_bfloat16(low);
    pair.lane[1] = __nv_bfloat16(high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <bool WIDE>
__global__ void __launch_bounds__(THREADS) attend(
    const __nv_bfloat16* __restrict__ query, const __nv_bfloat16* __restrict__ key, const __nv_bfloat16* __restrict__ value,
    __nv_bfloat16* __restrict__ out, int length, int context, int heads, int kv_heads, float scale) {
    __shared__ __nv_bfloat16 keys[KEYS][STRIDE];
    __shared__ __nv_bfloat16 values[KEYS][STRIDE];
    const int lane = threadIdx.x % 32;
    const int head = blockIdx.y;
    const int64_t batch = blockIdx.z;
    const int kv_head = head / (heads / kv_heads);
    const int first = static_cast<int>(gridDim.x - 1 - blockIdx.x) * QUERIES;  // the longest rows first
    const int row = first + threadIdx.x / 32 * 16 + lane / 4;                  // and eight rows below
    const int deep = lane % 4 * 2;
    const int behind = context - length;

    uint32_t q[HEAD / 16][4];
#pragma unroll
    for (int step = 0; step < HEAD / 16; ++step) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = row + i % 2 * 8;
            const __nv_bfloat16* from = query + ((batch * length + at) * heads + head) * HEAD + step * 16 + deep + i / 2 * 8;
            q[step][i] = at >= length ? 0u : WIDE ? two(from) : two(static_cast<float>(from[0]), static_cast<float>(from[1]));
        }
    }
    float largest[2] = {NEVER, NEVER};
    float sum[2] = {};
    float mine[HEAD / 8][4] = {};
    const int last = min(first + QUERIES, length) + behind;  // keys of any of these queries
    const float by = scale * 1.4426950408889634f;
    for (int begin = 0; begin < last; begin += KEYS) {
        __syncthreads();
#pragma unroll 4
        for (int chunk = threadIdx.x; chunk < KEYS * HEAD / LANES; chunk += THREADS) {
            const int t = chunk / (HEAD / LANES);
            const int d = chunk % (HEAD / LANES) * LANES;
            const int64_t at = ((batch * context + begin + t) * kv_heads + kv_head) * HEAD + d;
            *reinterpret_cast<Pack*>(&keys[t][d]) = load<WIDE>(key + at, begin + t < last);
            *reinterpret_cast<Pack*>(&values[t][d]) = load<WIDE>(value + at, begin + t < last);
        }
        __syncthreads();

        float scores[KEYS / 8][4] = {};
#pragma unroll
        for (int step = 0; step < HEAD / 16; ++step) {
#pragma unroll
            for (int c = 0; c < KEYS / 8; ++c) {
                const __nv_bfloat16* at = &keys[c * 8 + lane / 4][step * 16 + deep];
                multiply(scores[c], q[step], two(at), two(at + 8));
            }
        }
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int seen = row + 8 * half + behind - begin;  // the last key of this row, from the tile's first
            float next = largest[half];
#pragma unroll
            for (int c = 0; c < KEYS / 8; ++c) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    scores[c][i] = c * 8 + deep + i % 2 <= seen ? scores[c][i] * by : NEVER;
                    next = fmaxf(next, scores[c][i]);
                }
            }
            next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 1));
            next = fmaxf(next, __shfl_xor_sync(0xffffffffu, next, 2));
            const float shrunk = exp2f(largest[half] - next);
            largest[half] = next;
            sum[half] *= shrunk;
#pragma unroll
            for (int c = 0; c < KEYS / 8; ++c) {
#pragma unroll
                for (int i = 2 * half; i < 2 * half + 2; ++i) {
                    scores[c][i] = exp2f(scores[c][i] - next);
                    sum[half] += scores[c][i];
                }
            }
#pragma unroll
            for (int c = 0; c < HEAD / 8; ++c) {
                mine[c][2 * half] *= shrunk;
                mine[c][2 * half + 1] *= shrunk;
            }
        }
#pragma unroll
        for (int step = 0; step < KEYS / 16; ++step) {
            const float(&low)[4] = scores[2 * step];
            const float(&high)[4] = scores[2 * step + 1];
            const uint32_t p[4] = {two(low[0], low[1]), two(low[2], low[3]), two(high[0], high[1]), two(high[2], high[3])};
#pragma unroll
            for (int c = 0; c < HEAD / 16; ++c) {
                const uint32_t from = static_cast<uint32_t>(
                    __cvta_generic_to_shared(&values[step * 16 + lane % 16][c * 16 + lane / 16 * 8]));
                uint32_t b[4];
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                             : "r"(from));
                multiply(mine[2 * c], p, b[0], b[1]);
                multiply(mine[2 * c + 1], p, b[2], b[3]);
            }
        }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 1);
        sum[half] += __shfl_xor_sync(0xffffffffu, sum[half], 2);
        const int at = row + 8 * half;
        if (at < length) {
            __nv_bfloat16* to = out + ((batch * length + at) * heads + head) * HEAD + deep;
#pragma unroll
            for (int c = 0; c < HEAD / 8; ++c) {
                to[c * 8] = __nv_bfloat16(mine[c][2 * half] / sum[half]);
                to[c * 8 + 1] = __nv_bfloat16(mine[c][2 * half + 1] / sum[half]);
            }
        }
    }
}

extern "C" void prefill_attention_bfloat16(
    const __nv_bfloat16* query, const __nv_bfloat16* key, const __nv_bfloat16* value, __nv_bfloat16* out, int64_t batch,
    int64_t length, int64_t context, int64_t heads, int64_t kv_heads, float scale, cudaStream_t stream) {
    const dim3 grid(
        static_cast<unsigned>((length + QUERIES - 1) / QUERIES), static_cast<unsigned>(heads), static_cast<unsigned>(batch));
    const uintptr_t places =
        reinterpret_cast<uintptr_t>(query) | reinterpret_cast<uintptr_t>(key) | reinterpret_cast<uintptr_t>(value);
    if (places % 16 == 0) {
        attend<true><<<grid, THREADS, 0, stream>>>(
            query, key, value, out, static_cast<int>(length), static_cast<int>(context), static_cast<int>(heads),
            static_cast<int>(kv_heads), scale);
    } else {
        attend<false><<<grid, THREADS, 0, stream>>>(
            query, key, value, out, static_cast<int>(length), static_cast<int>(context), static_cast<int>(heads),
            static_cast<int>(kv_heads), scale);
    }
}
