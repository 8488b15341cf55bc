// FlashDecoding: the keys are split over blocks that fill the device, all query heads of a group read them together, a second small
// kernel merges the splits.
#include <cstdint>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <map>

#define AT_A_TIME 4

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

constexpr int kThreads = 128;

__device__ __forceinline__ void widen(float (&to)[8], const uint4& raw) {
    const __half2* const pairs = reinterpret_cast<const __half2*>(&raw);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const float2 two = __half22float2(pairs[i]);
        to[2 * i] = two.x, to[2 * i + 1] = two.y;
    }
}

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

// A block: the keys of one split, for up to HEADS query heads that share them. Half a warp takes a key: 16 bytes a lane.
template <int HEADS>
__global__ void __launch_bounds__(kThreads)
attend(const __half* __restrict__ query, const __half* __restrict__ keys, const __half* __restrict__ values, __half* __restrict__ out, Sizes n) {
    const int split = blockIdx.x % n.splits, first = blockIdx.y * HEADS, heads = min(HEADS, n.group - first);
    const int64_t pair = blockIdx.x / n.splits;
    const int half_warp = threadIdx.x / 16, lane = threadIdx.x % 16;
    float mine[HEADS][8], sum[HEADS][8] = {}, maximum[HEADS], weights[HEADS];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        maximum[h] = -INFINITY, weights[h] = 0.0f;
        uint4 raw = make_uint4(0, 0, 0, 0);
        if (h < heads) raw = *reinterpret_cast<const uint4*>(query + (pair * n.group + first + h) * kHead + lane * 8);
        widen(mine[h], raw);
    }
    const __half* const key = keys + pair * n.length * kHead + lane * 8;
    const __half* const value = values + pair * n.length * kHead + lane * 8;
    const int begin = split * n.keys_a_split, end = min(n.length, begin + n.keys_a_split);
    for (int base = begin; base < end; base += kThreads / 16 * AT_A_TIME) {
        const int at = base + half_warp * AT_A_TIME;  // behind the end a half warp weighs nothing
        uint4 k[AT_A_TIME], v[AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            const int64_t from = int64_t(min(at + i, end - 1)) * kHead;
            k[i] = __ldcs(reinterpret_cast<const uint4*>(key + from));
            v[i] = __ldcs(reinterpret_cast<const uint4*>(value + from));
        }
        float score[HEADS][AT_A_TIME];
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            float wide[8];
            widen(wide, k[i]);
#pragma unroll
            for (int h = 0; h < HEADS; ++h) {
                float dot = 0.0f;
#pragma unroll
                for (int e = 0; e < 8; ++e) dot += mine[h][e] * wide[e];
                score[h][i] = dot;
            }
        }
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
            float larger = maximum[h];
#pragma unroll
            for (int i = 0; i < AT_A_TIME; ++i) {
#pragma unroll
                for (int step = 8; step; step >>= 1) score[h][i] += __shfl_xor_sync(0xffffffffu, score[h][i], step);
                score[h][i] = at + i < end ? score[h][i] * n.scale_log2 : -INFINITY;
                larger = fmaxf(larger, score[h][i]);
            }
            const float keep = power(maximum[h], larger);
            maximum[h] = larger, weights[h] *= keep;
#pragma unroll
            for (int e = 0; e < 8; ++e) sum[h][e] *= keep;
#pragma unroll
            for (int i = 0; i < AT_A_TIME; ++i) weights[h] += score[h][i] = power(score[h][i], larger);
        }
#pragma unroll
        for (int i = 0; i < AT_A_TIME; ++i) {
            float wide[8];
            widen(wide, v[i]);
#pragma unroll
            for (int h = 0; h < HEADS; ++h)
#pragma unroll
                for (int e = 0; e < 8; ++e) sum[h][e] += at + i < end ? score[h][i] * wide[e] : 0.0f;
        }
    }
    __shared__ float all[HEADS][kThreads / 16][kHead];
    __shared__ float2 states[HEADS][kThreads / 16];
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
        if (lane == 0) states[h][half_warp] = make_float2(maximum[h], weights[h]);
#pragma unroll
        for (int e = 0; e < 8; ++e) all[h][half_warp][lane * 8 + e] = sum[h][e];
    }
    __syncthreads();
    for (int h = 0; h < heads; ++h) {  // a thread an element
        float largest = -INFINITY, total = 0.0f, one = 0.0f;
        for (int i = 0; i < kThreads / 16; ++i) largest = fmaxf(largest, states[h][i].x);
        for (int i = 0; i < kThreads / 16; ++i) {
            const float share = power(states[h][i].x, largest);
            total += states[h][i].y * share, one += all[h][i][threadIdx.x] * share;
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

template <int HEADS>
void launch(const __half* query, const __half* keys, const __half* values, __half* out, int64_t batch, Sizes n, cudaStream_t stream) {
    const int64_t pairs = batch * n.heads_kv;
    const int chunks = (n.group + HEADS - 1) / HEADS;
    n.splits = best_splits(pairs * chunks, pairs * n.group, n.length, 64, multiprocessors() * 4);
    const int tiles = (n.length + 63) / 64;
    n.keys_a_split = (tiles + n.splits - 1) / n.splits * 64;
    n.splits = (n.length + n.keys_a_split - 1) / n.keys_a_split;  // none without a key
    if (n.splits > 1 && !find_room(&n.partial, stream)) return;  // and the outputs stay poison
    attend<HEADS><<<dim3(pairs * n.splits, chunks), kThreads, 0, stream>>>(query, keys, values, out, n);
    if (n.splits > 1) merge_all<<<pairs * n.group, kHead, 0, stream>>>(out, n.partial, n.splits);
}

extern "C" void decode_attention_float16(
    const __half* query, const __half* keys, const __half* values, __half* out, int64_t batch, int64_t heads_kv,
    int64_t group, int64_t length, float scale, cudaStream_t stream) {
    const Sizes n{int(heads_kv), int(group), int(length), 1, 0, scale * 1.4426950408889634f, {}};
    if (group == 1) launch<1>(query, keys, values, out, batch, n, stream);
    else if (group <= 4) launch<4>(query, keys, values, out, batch, n, stream);
    else launch<8>(query, keys, values, out, batch, n, stream);
}
