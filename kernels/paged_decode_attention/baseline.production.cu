// Attention of one query a sequence over a paged cache, keys split over blocks (flash decoding): a block takes a sixteenth of a sequence's
// keys for up to four heads of one key head, eight lanes a key, 32 bytes a lane; a second kernel joins the parts.
#include <cuda_bf16.h>
#include <math.h>
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


constexpr int SPLITS = 16;
constexpr int PAGE = 16;
constexpr int HEAD = 128;
constexpr int TEAMS = 16;         // of eight lanes
constexpr float NEVER = -1e30f;  // a largest score of no key

template <int HEADS, bool WIDE>
__global__ void __launch_bounds__(128) attend(
    const __nv_bfloat16* __restrict__ query, const __nv_bfloat16* __restrict__ key_cache,
    const __nv_bfloat16* __restrict__ value_cache, const int32_t* __restrict__ block_table,
    const int32_t* __restrict__ lengths, float* __restrict__ partial, int heads, int kv_heads, int table, float scale) {
    __shared__ float largest_of[TEAMS][HEADS];
    __shared__ float sum_of[TEAMS][HEADS];
    __shared__ float sums_of[TEAMS][HEADS][HEAD];
    const int split = blockIdx.x;
    const int head = blockIdx.y * HEADS;
    const int64_t seq = blockIdx.z;
    const int kv_head = head / (heads / kv_heads);
    const int team = threadIdx.x / 8;
    const int part = threadIdx.x % 8 * 16;
    const int length = lengths[seq];
    const int each = (length + SPLITS - 1) / SPLITS;
    const int end = min(length, (split + 1) * each);

    float q[HEADS][16];
    float largest[HEADS];
    float sum[HEADS];
    float sums[HEADS][16];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        largest[h] = NEVER;
        sum[h] = 0.0f;
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            q[h][d] = static_cast<float>(query[(seq * heads + head + h) * HEAD + part + d]) * scale;
            sums[h][d] = 0.0f;
        }
    }
    for (int first = split * each; first < end; first += TEAMS) {
        const int t = first + team;
        const int held = t < end ? t : end - 1;
        const int64_t page = block_table[seq * table + held / PAGE];
        const int64_t row = ((page * PAGE + held % PAGE) * kv_heads + kv_head) * HEAD + part;
        Pack<__nv_bfloat16, 8> key[2];
        Pack<__nv_bfloat16, 8> value[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            load<WIDE>(key[i], key_cache + row + 8 * i);
            load<WIDE>(value[i], value_cache + row + 8 * i);
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            float dot = 0.0f;
#pragma unroll
            for (int d = 0; d < 16; ++d) {
                dot += q[h][d] * static_cast<float>(key[d / 8].lane[d % 8]);
            }
#pragma unroll
            for (int offset = 4; offset > 0; offset /= 2) {
                dot += __shfl_xor_sync(0xffffffffu, dot, offset);
            }
            const float score = t < end ? dot : NEVER;
            const float next = fmaxf(largest[h], score);
            const float shrunk = __expf(largest[h] - next);
            const float weight = t < end ? __expf(score - next) : 0.0f;
            largest[h] = next;
            sum[h] = sum[h] * shrunk + weight;
#pragma unroll
            for (int d = 0; d < 16; ++d) {
                sums[h][d] = sums[h][d] * shrunk + weight * static_cast<float>(value[d / 8].lane[d % 8]);
            }
        }
    }
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        largest_of[team][h] = largest[h];
        sum_of[team][h] = sum[h];
#pragma unroll
        for (int d = 0; d < 16; ++d) {
            sums_of[team][h][part + d] = sums[h][d];
        }
    }
    __syncthreads();
    for (int h = 0; h < HEADS; ++h) {
        float most = NEVER;
        for (int other = 0; other < TEAMS; ++other) {
            most = fmaxf(most, largest_of[other][h]);
        }
        float whole = 0.0f;
        float mine = 0.0f;
        for (int other = 0; other < TEAMS; ++other) {
            const float share = __expf(largest_of[other][h] - most);
            whole += sum_of[other][h] * share;
            mine += sums_of[other][h][threadIdx.x] * share;
        }
        float* to = partial + ((seq * heads + head + h) * SPLITS + split) * (HEAD + 2);
        to[threadIdx.x] = mine;
        if (threadIdx.x == 0) {
            to[HEAD] = most;
            to[HEAD + 1] = whole;
        }
    }
}

__global__ void __launch_bounds__(HEAD) join_splits(const float* __restrict__ partial, __nv_bfloat16* __restrict__ out) {
    const float* from = partial + static_cast<int64_t>(blockIdx.x) * SPLITS * (HEAD + 2);
    float most = NEVER;
    for (int split = 0; split < SPLITS; ++split) {
        most = fmaxf(most, from[split * (HEAD + 2) + HEAD]);
    }
    float whole = 0.0f;
    float mine = 0.0f;
    for (int split = 0; split < SPLITS; ++split) {
        const float share = __expf(from[split * (HEAD + 2) + HEAD] - most);
        whole += from[split * (HEAD + 2) + HEAD + 1] * share;
        mine += from[split * (HEAD + 2) + threadIdx.x] * share;
    }
    out[static_cast<int64_t>(blockIdx.x) * HEAD + threadIdx.x] = __nv_bfloat16(mine / whole);
}

template <int HEADS>
static void launch(
    const __nv_bfloat16* query, const __nv_bfloat16* key_cache, const __nv_bfloat16* value_cache, const int32_t* block_table,
    const int32_t* lengths, float* partial, int64_t seqs, int64_t heads, int64_t kv_heads, int64_t table, float scale,
    cudaStream_t stream) {
    const dim3 grid(SPLITS, static_cast<unsigned>(heads / HEADS), static_cast<unsigned>(seqs));
    const int all = static_cast<int>(heads);
    const int kv = static_cast<int>(kv_heads);
    const int width = static_cast<int>(table);
    if ((reinterpret_cast<uintptr_t>(key_cache) | reinterpret_cast<uintptr_t>(value_cache)) % 16 == 0) {
        attend<HEADS, true><<<grid, 128, 0, stream>>>(
            query, key_cache, value_cache, block_table, lengths, partial, all, kv, width, scale);
    } else {
        attend<HEADS, false><<<grid, 128, 0, stream>>>(
            query, key_cache, value_cache, block_table, lengths, partial, all, kv, width, scale);
    }
}

extern "C" void paged_decode_attention_bfloat16(
    const __nv_bfloat16* query, const __nv_bfloat16* key_cache, const __nv_bfloat16* value_cache, const int32_t* block_table,
    const int32_t* lengths, float* partial, __nv_bfloat16* out, int64_t seqs, int64_t heads, int64_t kv_heads, int64_t pages,
    int64_t table, float scale, cudaStream_t stream) {
    (void)pages;
    const int64_t together = heads / kv_heads;
    if (together % 4 == 0) {
        launch<4>(query, key_cache, value_cache, block_table, lengths, partial, seqs, heads, kv_heads, table, scale, stream);
    } else if (together % 2 == 0) {
        launch<2>(query, key_cache, value_cache, block_table, lengths, partial, seqs, heads, kv_heads, table, scale, stream);
    } else {
        launch<1>(query, key_cache, value_cache, block_table, lengths, partial, seqs, heads, kv_heads, table, scale, stream);
    }
    join_splits<<<static_cast<unsigned>(seqs * heads), HEAD, 0, stream>>>(partial, out);
}
