// FlashDecoding on tensor cores: the query heads that share a key are the rows of one product, so registers and instructions no longer
// grow with them; tiles of keys and values come through a ring in shared memory.
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <map>

#define STAGES 3
#define BLOCKS 2  // at a time on a multiprocessor: 96 KiB each

constexpr int kHead = 128;
constexpr int kMostRows = 1 << 15;  // partial results: 16 MiB

// What a split of the keys came to, for each query head: maximum and sum of the weights, and the weighted values, not divided.
// A row is (sequence * heads + head) * splits + split. A stream has its own: calls on two of them are in flight together.
struct Partial {
    float2* weights;
    float4* values;
};

struct Sizes {
    int heads_kv, group, length, splits, keys_a_split;
    float scale_log2;  // scores come in base 2
    Partial partial;
};

__device__ __forceinline__ float power(float of, float maximum) {  // 2^(of - maximum); 0 where there was no key
    return of == -INFINITY ? 0.0f : exp2f(of - maximum);
}

// The splits of one head together: a warp takes every fourth, a lane four elements. Splits are at most as many as threads.
__device__ __forceinline__ void merge(__half* __restrict__ out, Partial partial, int64_t head, int splits) {
    __shared__ float shares[kHead], largest[4], totals[4];
    __shared__ float4 parts[4][32];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const bool mine = threadIdx.x < splits;
    const float2 theirs = mine ? __ldcg(&partial.weights[head * splits + threadIdx.x]) : make_float2(-INFINITY, 0.0f);
    float maximum = theirs.x;
    for (int step = 16; step; step >>= 1) maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, step));
    if (lane == 0) largest[warp] = maximum;
    __syncthreads();
    maximum = fmaxf(fmaxf(largest[0], largest[1]), fmaxf(largest[2], largest[3]));
    const float share = power(theirs.x, maximum);
    float total = theirs.y * share;
    for (int step = 16; step; step >>= 1) total += __shfl_xor_sync(0xffffffffu, total, step);
    if (lane == 0) totals[warp] = total;
    shares[threadIdx.x] = share;
    __syncthreads();
    const float4* const rows = partial.values + head * splits * 32 + lane;
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 8
    for (int split = warp; split < splits; split += 4) {
        const float4 value = __ldcg(rows + split * 32);
        const float by = shares[split];
        sum.x += value.x * by, sum.y += value.y * by, sum.z += value.z * by, sum.w += value.w * by;
    }
    parts[warp][lane] = sum;
    __syncthreads();
    if (warp > 0) return;
    for (int other = 1; other < 4; ++other) {
        const float4 value = parts[other][lane];
        sum.x += value.x, sum.y += value.y, sum.z += value.z, sum.w += value.w;
    }
    const float by = 1.0f / (totals[0] + totals[1] + totals[2] + totals[3]);
    __half2* const to = reinterpret_cast<__half2*>(out + head * kHead + lane * 4);
    to[0] = __floats2half2_rn(sum.x * by, sum.y * by), to[1] = __floats2half2_rn(sum.z * by, sum.w * by);
}

__device__ __forceinline__ uint32_t address_of(const void* at) { return uint32_t(__cvta_generic_to_shared(at)); }

__device__ __forceinline__ void load(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void load_transposed(uint32_t (&to)[4], uint32_t from) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3]) : "r"(from) : "memory");
}
__device__ __forceinline__ void multiply(float (&sum)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+f"(sum[0]), "+f"(sum[1]), "+f"(sum[2]), "+f"(sum[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Two weights as halves, and what the halves leave out as halves too: one rounding to half would show in the sums.
__device__ __forceinline__ void in_halves(float first, float second, uint32_t& high, uint32_t& low) {
    const __half2 rounded = __floats2half2_rn(first, second);
    const float2 back = __half22float2(rounded);
    const __half2 rest = __floats2half2_rn(first - back.x, second - back.y);
    high = *reinterpret_cast<const uint32_t*>(&rounded), low = *reinterpret_cast<const uint32_t*>(&rest);
}

// What a warp holds of up to 16 query heads: rows lane/4 and lane/4 + 8, in blocks of eight columns lane%4*2 (+1).
struct Heads {
    uint32_t query[kHead / 16][4];
    float sum[kHead / 8][4];
    float maximum[2], weights[2];  // weights: of this lane's keys alone

    __device__ __forceinline__ void begin(const __half* __restrict__ from, int heads) {
        const int lane = threadIdx.x % 32, row = lane / 4, column = lane % 4 * 2;
#pragma unroll
        for (int k = 0; k < kHead / 16; ++k)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int head = row + i % 2 * 8, at = k * 16 + i / 2 * 8 + column;
                query[k][i] = head < heads ? *reinterpret_cast<const uint32_t*>(from + head * kHead + at) : 0;
            }
#pragma unroll
        for (int j = 0; j < kHead / 8; ++j) sum[j][0] = sum[j][1] = sum[j][2] = sum[j][3] = 0.0f;
        maximum[0] = maximum[1] = -INFINITY, weights[0] = weights[1] = 0.0f;
    }

    // Sixteen keys and values in shared memory, of which the first `count` are there; what is behind is zeros.
    template <class Place>
    __device__ __forceinline__ void take(Place place, uint32_t keys, uint32_t values, int count, float scale_log2) {
        const int lane = threadIdx.x % 32;
        float score[2][4] = {};
#pragma unroll
        for (int k = 0; k < kHead / 16; ++k) {
            uint32_t key[4];
            load(key, keys + place(lane % 8 + lane / 16 * 8, k * 2 + lane / 8 % 2));
            multiply(score[0], query[k], key[0], key[1]);
            multiply(score[1], query[k], key[2], key[3]);
        }
        uint32_t high[4], low[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {  // rows lane/4, then lane/4 + 8
            float mine[4], larger = maximum[half];
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int key = i / 2 * 8 + lane % 4 * 2 + i % 2;
                mine[i] = key < count ? score[i / 2][half * 2 + i % 2] * scale_log2 : -INFINITY;
                larger = fmaxf(larger, mine[i]);
            }
            larger = fmaxf(larger, __shfl_xor_sync(0xffffffffu, larger, 1));
            larger = fmaxf(larger, __shfl_xor_sync(0xffffffffu, larger, 2));
            const float keep = power(maximum[half], larger);
            maximum[half] = larger, weights[half] *= keep;
#pragma unroll
            for (int i = 0; i < 4; ++i) weights[half] += mine[i] = power(mine[i], larger);
#pragma unroll
            for (int j = 0; j < kHead / 8; ++j) sum[j][half * 2] *= keep, sum[j][half * 2 + 1] *= keep;
            in_halves(mine[0], mine[1], high[half], low[half]);
            in_halves(mine[2], mine[3], high[half + 2], low[half + 2]);
        }
#pragma unroll
        for (int j = 0; j < kHead / 16; ++j) {
            uint32_t value[4];
            load_transposed(value, values + place(lane % 16, j * 2 + lane / 16));
            multiply(sum[j * 2], high, value[0], value[1]);
            multiply(sum[j * 2], low, value[0], value[1]);
            multiply(sum[j * 2 + 1], high, value[2], value[3]);
            multiply(sum[j * 2 + 1], low, value[2], value[3]);
        }
    }

    // Into shared memory: [16] maximum and sum of weights, [16][kHead] weighted values.
    __device__ __forceinline__ void leave(float2* states, float* all) {
        const int lane = threadIdx.x % 32;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            weights[half] += __shfl_xor_sync(0xffffffffu, weights[half], 1);
            weights[half] += __shfl_xor_sync(0xffffffffu, weights[half], 2);
            const int row = lane / 4 + half * 8;
            if (lane % 4 == 0) states[row] = make_float2(maximum[half], weights[half]);
#pragma unroll
            for (int j = 0; j < kHead / 8; ++j)
                *reinterpret_cast<float2*>(all + row * kHead + j * 8 + lane % 4 * 2) = make_float2(sum[j][half * 2], sum[j][half * 2 + 1]);
        }
    }
};

// How many splits of `length` keys, in tiles of `tile`, for `pairs` blocks without splits: the fewest rounds of tiles over the
// `places` that the device has at a time, a tile more for what each block begins and ends with.
static int best_splits(int64_t pairs, int64_t rows, int length, int tile, int places) {
    const int tiles = (length + tile - 1) / tile;
    int best = 1;
    int64_t least = INT64_MAX;
    for (int splits = 1; splits <= tiles && splits <= 128 && rows * splits <= kMostRows; ++splits) {
        const int64_t rounds = (pairs * splits + places - 1) / places, cost = rounds * ((tiles + splits - 1) / splits + 2);
        if (cost < least) least = cost, best = splits;
    }
    return best;
}

static int multiprocessors() {
    int device = 0, count = 1;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device);
    return count;
}

constexpr int kWarps = 4, kThreads = kWarps * 32, kTile = kWarps * 16;
constexpr int kTileBytes = kTile * kHead * 2, kBytes = STAGES * 2 * kTileBytes;
static_assert(kBytes >= kWarps * 16 * (kHead * 4 + 8), "the warps' results go where the ring was");

// Rows of 256 bytes in pieces of 16: eight rows' same pieces lie in eight different places of a line.
__device__ __forceinline__ int place(int row, int piece) { return row * 256 + (piece ^ (row & 7)) * 16; }

__device__ __forceinline__ void fetch(char* to, const __half* __restrict__ from, int first, int end) {
#pragma unroll
    for (int i = threadIdx.x; i < kTile * 16; i += kThreads) {
        const bool inside = first + i / 16 < end;  // zeros behind
        const __half* const at = from + int64_t(inside ? first + i / 16 : 0) * kHead + i % 16 * 8;
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(address_of(to + place(i / 16, i % 16))), "l"(at),
                     "r"(inside ? 16 : 0) : "memory");
    }
}

// A block: the keys of one split, for up to 16 query heads that share them. Each warp takes 16 keys of a tile.
__global__ void __launch_bounds__(kThreads)
attend(const __half* __restrict__ query, const __half* __restrict__ keys, const __half* __restrict__ values, __half* __restrict__ out, Sizes n) {
    extern __shared__ __align__(128) char ring[];
    const int split = blockIdx.x % n.splits, first = blockIdx.y * 16, heads = min(16, n.group - first), warp = threadIdx.x / 32;
    const int64_t pair = blockIdx.x / n.splits;
    const __half* const key = keys + pair * n.length * kHead;
    const __half* const value = values + pair * n.length * kHead;
    const int begin = split * n.keys_a_split, end = min(n.length, begin + n.keys_a_split), tiles = (end - begin + kTile - 1) / kTile;
    for (int s = 0; s < STAGES - 1; ++s) {
        if (s < tiles) {
            fetch(ring + s * 2 * kTileBytes, key, begin + s * kTile, end);
            fetch(ring + s * 2 * kTileBytes + kTileBytes, value, begin + s * kTile, end);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
    }
    Heads mine;
    mine.begin(query + (pair * n.group + first) * kHead, heads);
    for (int tile = 0; tile < tiles; ++tile) {
        asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
        __syncthreads();  // this tile is there for all, and nobody reads the one before any more
        const int ahead = tile + STAGES - 1;
        if (ahead < tiles) {
            fetch(ring + ahead % STAGES * 2 * kTileBytes, key, begin + ahead * kTile, end);
            fetch(ring + ahead % STAGES * 2 * kTileBytes + kTileBytes, value, begin + ahead * kTile, end);
        }
        asm volatile("cp.async.commit_group;" ::: "memory");
        const uint32_t at = address_of(ring + tile % STAGES * 2 * kTileBytes) + warp * 16 * kHead * 2;
        mine.take(place, at, at + kTileBytes, end - (begin + tile * kTile + warp * 16), n.scale_log2);
    }
    asm volatile("cp.async.wait_group 0;" ::: "memory");
    __syncthreads();
    float2* const states = reinterpret_cast<float2*>(ring);
    float* const all = reinterpret_cast<float*>(ring + kWarps * 16 * 8);
    mine.leave(states + warp * 16, all + warp * 16 * kHead);
    __syncthreads();
    for (int h = 0; h < heads; ++h) {  // a thread an element
        float largest = -INFINITY, total = 0.0f, one = 0.0f;
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, states[w * 16 + h].x);
        for (int w = 0; w < kWarps; ++w) {
            const float share = power(states[w * 16 + h].x, largest);
            total += states[w * 16 + h].y * share, one += all[(w * 16 + h) * kHead + threadIdx.x] * share;
        }
        const int64_t head = pair * n.group + first + h, row = head * n.splits + split;
        if (n.splits == 1) {
            out[head * kHead + threadIdx.x] = __float2half(one / total);
        } else {
            if (threadIdx.x == 0) n.partial.weights[row] = make_float2(largest, total);
            reinterpret_cast<float*>(n.partial.values)[row * kHead + threadIdx.x] = one;
        }
    }
}

__global__ void __launch_bounds__(kHead) merge_all(__half* __restrict__ out, Partial partial, int splits) { merge(out, partial, blockIdx.x, splits); }

static bool find_room(Partial* partial, cudaStream_t stream) {
    static std::map<cudaStream_t, char*> kept;
    char*& room = kept[stream];
    constexpr size_t of_values = size_t(kMostRows) * kHead * sizeof(float);
    if (!room && cudaMalloc(&room, of_values + kMostRows * sizeof(float2)) != cudaSuccess) return false;
    partial->values = reinterpret_cast<float4*>(room), partial->weights = reinterpret_cast<float2*>(room + of_values);
    return true;
}

extern "C" void decode_attention_float16(
    const __half* query, const __half* keys, const __half* values, __half* out, int64_t batch, int64_t heads_kv,
    int64_t group, int64_t length, float scale, cudaStream_t stream) {
    Sizes n{int(heads_kv), int(group), int(length), 1, 0, scale * 1.4426950408889634f, {}};
    const int64_t pairs = batch * heads_kv;
    const int chunks = (n.group + 15) / 16, tiles = (n.length + kTile - 1) / kTile;
    n.splits = best_splits(pairs * chunks, pairs * group, n.length, kTile, multiprocessors() * BLOCKS);
    n.keys_a_split = (tiles + n.splits - 1) / n.splits * kTile;
    n.splits = (n.length + n.keys_a_split - 1) / n.keys_a_split;  // none without a key
    if (n.splits > 1 && !find_room(&n.partial, stream)) return;  // and the outputs stay poison
    cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    attend<<<dim3(pairs * n.splits, chunks), kThreads, kBytes, stream>>>(query, keys, values, out, n);
    if (n.splits > 1) merge_all<<<pairs * group, kHead, 0, stream>>>(out, n.partial, n.splits);
}
