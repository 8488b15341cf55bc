// FlashDecoding on tensor cores, keys and values by TMA: one thread fills the ring and the warps that multiply have no barrier in common.
#include <cstdint>
#include <cuda.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <map>

#define WARPS 4  // that multiply; a tile has 16 keys for each
#define RING 3
#define BLOCKS 2  // at a time on a multiprocessor
#define EARLY 0  // whether the merging kernel is put in place before the first has ended

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

constexpr int kWarps = WARPS, kThreads = kWarps * 32 + 32, kTile = kWarps * 16;
constexpr int kHalfBytes = kTile * 128, kTileBytes = 2 * kHalfBytes, kStageBytes = 2 * kTileBytes;
constexpr int kBytes = RING * kStageBytes + 1024 + 2 * RING * 8;
static_assert(RING * kStageBytes >= kWarps * 16 * (kHead * 4 + 8), "the warps' results go where the ring was");

// As TMA leaves it: two halves of rows of 128 bytes, each swizzled by 128 bytes.
__device__ __forceinline__ int place(int row, int piece) { return piece / 8 * kHalfBytes + row * 128 + (piece % 8 ^ (row & 7)) * 16; }

__device__ __forceinline__ void wait(uint32_t barrier, uint32_t phase) {
    asm volatile("{\n.reg .pred done;\nagain:\nmbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n@!done bra again;\n}"
                 ::"r"(barrier), "r"(phase) : "memory");
}
__device__ __forceinline__ void arrive(uint32_t barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
__device__ __forceinline__ void load_box(uint32_t to, const CUtensorMap* map, int column, int row, int pair, uint32_t barrier) {
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];"
                 ::"r"(to), "l"(map), "r"(barrier), "r"(column), "r"(row), "r"(pair) : "memory");
}

// A block: the keys of one split, for up to 16 query heads that share them. One warp fills the ring, each other takes 16 keys of a tile.
__global__ void __launch_bounds__(kThreads)
attend(const __half* __restrict__ query, const __grid_constant__ CUtensorMap map_keys, const __grid_constant__ CUtensorMap map_values,
       __half* __restrict__ out, Sizes n) {
    extern __shared__ char dynamic[];
    const uint32_t skipped = (1024 - address_of(dynamic) % 1024) % 1024, ring = address_of(dynamic) + skipped;  // the swizzle counts from there
    const uint32_t full = ring + RING * kStageBytes, empty = full + RING * 8;
    const int split = blockIdx.x % n.splits, pair = blockIdx.x / n.splits, first = blockIdx.y * 16, heads = min(16, n.group - first);
    const int begin = split * n.keys_a_split, end = min(n.length, begin + n.keys_a_split), tiles = (end - begin + kTile - 1) / kTile;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    if (threadIdx.x == 0) {
        for (int i = 0; i < RING; ++i) {
            asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(full + i * 8) : "memory");
            asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(empty + i * 8), "n"(kWarps) : "memory");
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    cudaTriggerProgrammaticLaunchCompletion();  // whoever is put in place from now on waits for the end of this one
    if (warp == kWarps) {
        if (lane == 0)
            for (int tile = 0; tile < tiles; ++tile) {
                const uint32_t stage = tile % RING, to = ring + stage * kStageBytes, barrier = full + stage * 8;
                wait(empty + stage * 8, (tile / RING & 1) ^ 1);  // passes at once in the first round
                asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(kStageBytes) : "memory");
                for (int half = 0; half < 2; ++half)
                    load_box(to + half * kHalfBytes, &map_keys, half * 64, begin + tile * kTile, pair, barrier);
                for (int half = 0; half < 2; ++half)
                    load_box(to + kTileBytes + half * kHalfBytes, &map_values, half * 64, begin + tile * kTile, pair, barrier);
            }
        return;
    }
    Heads mine;
    mine.begin(query + (int64_t(pair) * n.group + first) * kHead, heads);
    for (int tile = 0; tile < tiles; ++tile) {
        const uint32_t stage = tile % RING, at = ring + stage * kStageBytes + warp * 16 * 128;
        wait(full + stage * 8, tile / RING & 1);
        mine.take(place, at, at + kTileBytes, end - (begin + tile * kTile + warp * 16), n.scale_log2);
        __syncwarp();
        if (lane == 0) arrive(empty + stage * 8);
    }
    asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");  // nobody reads the ring any more
    float2* const states = reinterpret_cast<float2*>(dynamic + skipped);
    float* const all = reinterpret_cast<float*>(states + kWarps * 16);
    mine.leave(states + warp * 16, all + warp * 16 * kHead);
    asm volatile("bar.sync 1, %0;" ::"n"(kWarps * 32) : "memory");
    for (int i = threadIdx.x; i < heads * kHead; i += kWarps * 32) {
        const int h = i / kHead, element = i % kHead;
        float largest = -INFINITY, total = 0.0f, one = 0.0f;
        for (int w = 0; w < kWarps; ++w) largest = fmaxf(largest, states[w * 16 + h].x);
        for (int w = 0; w < kWarps; ++w) {
            const float share = power(states[w * 16 + h].x, largest);
            total += states[w * 16 + h].y * share, one += all[(w * 16 + h) * kHead + element] * share;
        }
        const int64_t head = int64_t(pair) * n.group + first + h, row = head * n.splits + split;
        if (n.splits == 1) {
            out[head * kHead + element] = __float2half(one / total);
        } else {
            if (element == 0) n.partial.weights[row] = make_float2(largest, total);
            reinterpret_cast<float*>(n.partial.values)[row * kHead + element] = one;
        }
    }
}

__global__ void __launch_bounds__(kHead) merge_all(__half* __restrict__ out, Partial partial, int splits) {
    cudaGridDependencySynchronize();
    merge(out, partial, blockIdx.x, splits);
}

using Encode = CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                        const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);

// The driver's function; its pointer comes from the runtime, so no library is linked.
static Encode* encoder() {
    static Encode* const found = [] {
        void* entry = nullptr;
        cudaDriverEntryPointQueryResult result;
        const cudaError_t error = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &result);
        return error == cudaSuccess && result == cudaDriverEntryPointSuccess ? reinterpret_cast<Encode*>(entry) : nullptr;
    }();
    return found;
}

// Boxes of kTile rows by 64 halves of [pairs, length, kHead], swizzled by 128 bytes, zeros behind the end of a length.
static bool encode(CUtensorMap* map, const __half* tensor, int64_t pairs, int64_t length) {
    const cuuint64_t sizes[] = {kHead, cuuint64_t(length), cuuint64_t(pairs)}, strides[] = {kHead * 2, cuuint64_t(length) * kHead * 2};
    const cuuint32_t box[] = {64, kTile, 1}, steps[] = {1, 1, 1};
    return encoder() && encoder()(map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 3, const_cast<__half*>(tensor), sizes, strides, box, steps,
                                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

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
    CUtensorMap map_keys, map_values;
    if (!encode(&map_keys, keys, pairs, length) || !encode(&map_values, values, pairs, length)) return;  // and the outputs stay poison
    const int chunks = (n.group + 15) / 16, tiles = (n.length + kTile - 1) / kTile;
    n.splits = best_splits(pairs * chunks, pairs * group, n.length, kTile, multiprocessors() * BLOCKS);
    n.keys_a_split = (tiles + n.splits - 1) / n.splits * kTile;
    n.splits = (n.length + n.keys_a_split - 1) / n.keys_a_split;  // none without a key
    if (n.splits > 1 && !find_room(&n.partial, stream)) return;  // and the outputs stay poison
    cudaFuncSetAttribute(attend, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
    attend<<<dim3(pairs * n.splits, chunks), kThreads, kBytes, stream>>>(query, map_keys, map_values, out, n);
    if (n.splits == 1) return;
    cudaLaunchAttribute early{};
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = EARLY;  // behind our own kernel only
    cudaLaunchConfig_t how{};
    how.gridDim = dim3(pairs * group), how.blockDim = dim3(kHead), how.stream = stream, how.attrs = &early, how.numAttrs = 1;
    cudaLaunchKernelEx(&how, merge_all, out, n.partial, n.splits);
}
