// What generated kernels call. The generator puts in this file whole; nvcc takes it by itself.
#if !defined(WITHOUT_CLUSTERS)
#include <cooperative_groups.h>
#endif
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#if !defined(WITHOUT_FP8)
#include <cuda_fp8.h>
#endif
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>

#if !defined(WITHOUT_PDL)
// Whether kernels are set up while their predecessors drain: the caller's choice, and worth it where all its kernels are.
extern "C" {
int enable_pdl = 0;
}
#endif

namespace {

#include "packs.cuh"
#include "ragged.cuh"

[[maybe_unused]] __device__ __forceinline__ float round_to_float16(float value) { return to_float(to<__half>(value)); }
[[maybe_unused]] __device__ __forceinline__ float round_to_bfloat16(float value) { return to_float(to<__nv_bfloat16>(value)); }
template <typename T>
__device__ __forceinline__ int32_t round_to_int8(T value) { return static_cast<int8_t>(value); }
template <typename T>
__device__ __forceinline__ int32_t round_to_uint8(T value) { return static_cast<uint8_t>(value); }
template <typename T>
__device__ __forceinline__ int32_t round_to_int16(T value) { return static_cast<int16_t>(value); }

template <typename To, typename From>
__device__ __forceinline__ To as_bits(From value) {
    static_assert(sizeof(To) == sizeof(From), "");
    To bits;
    memcpy(&bits, &value, sizeof(bits));
    return bits;
}

// Of integers, towards minus infinity.
template <typename T>
__device__ __forceinline__ T floor_quotient(T a, T b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
template <typename T>
__device__ __forceinline__ T floor_remainder(T a, T b) { return a - floor_quotient(a, b) * b; }

#include "approximations.cuh"

// a / b by b's reciprocal, which is found once for many numbers: what that leaves is added, so it is rounded as a division is (below 1e-25
// its last bit may differ). Both are multiplied by `scale_of(b)` before: then there is a reciprocal of every b, and nothing to branch around.
[[maybe_unused]] __device__ __forceinline__ float scale_of(float b) { return fabsf(b) < 0x1p-100f ? 0x1p100f : 1.0f; }
[[maybe_unused]] __device__ __forceinline__ float divided(float a, float b, float reciprocal) {
    const float near = a * reciprocal, quotient = fmaf(fmaf(-b, near, a), reciprocal, near);
    return fabsf(quotient) < INFINITY ? quotient : near;
}

// 2^23 more than a number below that, which is not negative.
[[maybe_unused]] __device__ __forceinline__ float raised(int32_t value) { return __uint_as_float(0x4b000000u | static_cast<unsigned>(value)); }

// A size that places are divided by: the host finds the multiplier once, the device multiplies and shifts. What is divided is not negative.
struct Divisor {
    int by, shift = 0;
    unsigned multiplier;

    explicit Divisor(int64_t size) : by(static_cast<int>(size)) {
        while ((INT64_C(1) << shift) < size) {
            ++shift;
        }
        multiplier = size > 0 ? static_cast<unsigned>(((INT64_C(1) << shift) - size) * (INT64_C(1) << 32) / size + 1) : 1;
    }

    __host__ __device__ __forceinline__ operator int() const { return by; }
};

[[maybe_unused]] __device__ __forceinline__ int operator/(int value, const Divisor& divisor) {
    const unsigned whole = value, high = static_cast<unsigned>(static_cast<uint64_t>(whole) * divisor.multiplier >> 32);
    return static_cast<int>((high + whole) >> divisor.shift);
}
[[maybe_unused]] __device__ __forceinline__ int operator%(int value, const Divisor& divisor) { return value - value / divisor * divisor.by; }

// The packs of 64 rows in tiles of four: neighbouring threads have neighbouring rows, where what they read lies along these.
[[maybe_unused]] __device__ __forceinline__ int turned_in_rows(int pack, int packs, const Divisor& row) {
    const int first = pack / row / 64 * 64 * row.by, within = pack - first;
    if (row.by % 4 != 0 || INT64_C(64) * row.by > packs - first) {
        return pack;
    }
    return first + within % 256 / 4 * row.by + within / 256 * 4 + within % 4;
}

// NaN wins, as in torch.
template <typename T>
__device__ __forceinline__ T maximum(T a, T b) { return a > b || a != a ? a : b; }
template <typename T>
__device__ __forceinline__ T minimum(T a, T b) { return a < b || a != a ? a : b; }
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
#if __CUDA_ARCH__ >= 800
template <>
__device__ __forceinline__ float maximum<float>(float a, float b) {
    float larger;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(larger) : "f"(a), "f"(b));
    return larger;
}
template <>
__device__ __forceinline__ float minimum<float>(float a, float b) {
    float smaller;
    asm("min.NaN.f32 %0, %1, %2;" : "=f"(smaller) : "f"(a), "f"(b));
    return smaller;
}
#endif
#endif

// What exponentials below a running maximum are taken below: that, or zero as long as nothing is above minus infinity.
[[maybe_unused]] __device__ __forceinline__ float shift_below(float maximum) { return maximum == -INFINITY ? 0.0f : maximum; }

// Blocks that share a row or a tile: `Split`, or as many as the launch said where that is 0.
template <int Split>
__device__ __forceinline__ int blocks_of_cluster() {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split == 0) {
        return static_cast<int>(cooperative_groups::this_cluster().num_blocks());
    }
#endif
    return Split;
}

// Says that this block is there; all of them are behind `await_cluster`, and their shared memory may be written.
template <int Split>
__device__ __forceinline__ void enter_cluster() {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        cooperative_groups::this_cluster().barrier_arrive();
    }
#endif
}
template <int Split>
__device__ __forceinline__ void await_cluster() {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        cooperative_groups::this_cluster().barrier_wait();
    }
#endif
}

// Nobody reads this block's shared memory any more.
template <int Split>
__device__ __forceinline__ void leave_cluster() {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        cooperative_groups::this_cluster().sync();
    }
#endif
}

// All blocks of a cluster come here: what they wrote to shared memory can be read.
template <int Split>
__device__ __forceinline__ void meet_in_cluster() {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        cooperative_groups::this_cluster().sync();
        return;
    }
#endif
    __syncthreads();
}

// This block's shared memory in another block of the cluster.
template <int Split, typename T>
__device__ __forceinline__ T* of_block(T* mine, int other) {
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        return cooperative_groups::this_cluster().map_shared_rank(mine, other);
    }
#endif
    return mine;
}

// Every thread of a team gets the reduction of its values. A team is `Team` neighbouring threads of a block of `Threads`, the
// whole block, however large, where `Team` is 0, or a cluster of `Split` blocks (0: of as many as the launch said), at most eight, all of
// which must be there. Once in a kernel, or meet in between.
template <int Threads, int Team, int Split, typename T, typename Join>
__device__ __forceinline__ T team_reduce(T value, T identity, Join join) {
#pragma unroll
    for (int step = (Team > 0 && Team < 32 ? Team : 32) / 2; step > 0; step /= 2) {
        value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
    }
    if constexpr (Team == 0 || Team > 32) {
        __shared__ T partial[32];
        const int warps = Team > 0 ? Team / 32 : blockDim.x / 32, other = threadIdx.x % 32;
        const int first = Team > 0 ? threadIdx.x / (Team > 0 ? Team : 1) * warps : 0;
        if (other == 0) {
            partial[threadIdx.x / 32] = value;
        }
        __syncthreads();
        value = other < warps ? partial[first + other] : identity;
#pragma unroll
        for (int step = 16; step > 0; step /= 2) {
            value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
        }
    }
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        __shared__ T of_block[8];
        const auto cluster = cooperative_groups::this_cluster();
        const int blocks = blocks_of_cluster<Split>();
        if (threadIdx.x < static_cast<unsigned>(blocks)) {  // every block is left all parts, so that nothing is read from another one
            *cluster.map_shared_rank(of_block + cluster.block_rank(), threadIdx.x) = value;
        }
        cluster.sync();
        value = of_block[0];
#pragma unroll
        for (int other = 1; other < 8; ++other) {
            value = other < blocks ? join(value, of_block[other]) : value;
        }
    }
#endif
    return value;
}

// The first row of threads of a cluster's first block gets, for each of a thread's `Width` columns, the reduction over the `Deep`
// threads of a column in a block and the cluster's `Split` blocks (0: as many as the launch said).
template <int Lanes, int Deep, int Split, int Width, typename T, typename Join>
__device__ __forceinline__ void column_reduce(T (&values)[Width], Join join) {
    if constexpr (Deep == 1 && Split == 1) {
        return;
    }
    constexpr int kColumns = Lanes * Width, kThreads = Lanes * Deep;
    constexpr bool kWithinWarps = 32 % Lanes == 0 && kThreads % 32 == 0;
    constexpr int kRows = kWithinWarps ? kThreads / 32 : Deep;
    __shared__ T partial[kRows * kColumns];
    const int across = threadIdx.x % Lanes;
    if constexpr (kWithinWarps) {
#pragma unroll
        for (int step = Lanes; step < 32; step *= 2) {
#pragma unroll
            for (int one = 0; one < Width; ++one) {
                values[one] = join(values[one], __shfl_xor_sync(0xffffffffu, values[one], step));
            }
        }
    }
    if (!kWithinWarps || threadIdx.x % 32 < Lanes) {
#pragma unroll
        for (int one = 0; one < Width; ++one) {
            partial[threadIdx.x / (kThreads / kRows) * kColumns + one * Lanes + across] = values[one];
        }
    }
    __syncthreads();
    for (int column = threadIdx.x; column < kColumns; column += kThreads) {
        T value = partial[column];
        for (int other = 1; other < kRows; ++other) {
            value = join(value, partial[other * kColumns + column]);
        }
        partial[column] = value;
    }
#if !defined(WITHOUT_CLUSTERS)
    if constexpr (Split != 1) {
        const auto cluster = cooperative_groups::this_cluster();
        cluster.sync();
        if (cluster.block_rank() == 0) {
            for (int column = threadIdx.x; column < kColumns; column += kThreads) {
                T value = partial[column];
#pragma unroll
                for (int other = 1; other < blocks_of_cluster<Split>(); ++other) {
                    value = join(value, *cluster.map_shared_rank(partial + column, other));
                }
                partial[column] = value;
            }
        }
    }
#endif
    __syncthreads();
#pragma unroll
    for (int one = 0; one < Width; ++one) {
        values[one] = partial[one * Lanes + across];
    }
}

#if !defined(WITHOUT_PDL)
// Waits for the grid in front of this one and lets the one behind it be set up: before it waits (TRIGGER_WHEN 0, never in clusters,
// which would take the places of those that they wait for), after that (1), or after that in the grid's last blocks alone (2).
template <int Split>
__device__ __forceinline__ void wait_for_predecessor() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (TRIGGER_WHEN == 0 && Split == 1) {
        cudaTriggerProgrammaticLaunchCompletion();
    }
    cudaGridDependencySynchronize();
    if (TRIGGER_WHEN == 1 || (TRIGGER_WHEN == 0 && Split != 1) || (TRIGGER_WHEN == 2 && gridDim.x - blockIdx.x <= 512)) {
        cudaTriggerProgrammaticLaunchCompletion();
    }
#endif
}
#endif

#if !defined(WITHOUT_ATTRIBUTES)
// A launch in clusters of `cluster` blocks with `bytes` of shared memory each; `Dependent`: of a kernel that waits for its predecessor
// itself.
template <bool Dependent, typename... Parameters, typename... Arguments>
void launch_with_shared(
    void (*kernel)(Parameters...), unsigned blocks, int cluster, int threads, int bytes, cudaStream_t stream, Arguments... arguments) {
    cudaLaunchAttribute attributes[2] = {};
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(blocks);
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = attributes;
    if (cluster > 1) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeClusterDimension;
        attribute.val.clusterDim.x = cluster;
        attribute.val.clusterDim.y = attribute.val.clusterDim.z = 1;
    }
#if !defined(WITHOUT_PDL)
    if (Dependent) {
        cudaLaunchAttribute& attribute = attributes[config.numAttrs++];
        attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        attribute.val.programmaticStreamSerializationAllowed = enable_pdl;
    }
#endif
    cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

template <bool Dependent, typename... Parameters, typename... Arguments>
void launch_with(void (*kernel)(Parameters...), unsigned blocks, int cluster, int threads, cudaStream_t stream, Arguments... arguments) {
    launch_with_shared<Dependent>(kernel, blocks, cluster, threads, 0, stream, arguments...);
}
#endif

// How a kernel of rows is launched for the size at hand: blocks of a row, packs that a thread keeps (0: none), threads of a block.
struct RowPlan {
    int split, items, threads;
};
constexpr int kByWarps = -1;  // packs that a thread keeps where a warp takes a row

// How wide a block may be whose threads keep `items` packs of `bytes` of registers each, beside some forty for the rest and what
// tells many items apart.
constexpr int row_width(int items, int bytes) {
    const int width = 65536 / (items * bytes / 4 + 40 + (items > 8 ? items : 0)) / 32 * 32;
    return width < 1024 ? width : 1024;
}

#if !defined(WITHOUT_ROW_PLANS) || !defined(WITHOUT_COLUMN_PLANS) || !defined(WITHOUT_STREAMS) || !defined(WITHOUT_PHASES)
#include "multiprocessors.cuh"

template <typename Kernel>
int registers_of(Kernel kernel) {
    cudaFuncAttributes found = {};
    cudaFuncGetAttributes(&found, kernel);
    return allocated_registers(found);
}
#endif

#if !defined(WITHOUT_ROW_PLANS)

inline int row_threads(int64_t packs, int items) { return static_cast<int>((packs + items * 32 - 1) / (items * 32)) * 32; }

// A few long rows are shared by clusters of blocks, as many as there are multiprocessors for (a thread keeps 2 or 8 packs); so are rows
// that no block could keep. Otherwise a block takes a row, and a thread keeps as many packs, 1, 2, 4 or 8 times `Unit`, as bring all
// rows through in the fewest waves of blocks, and no more than that takes, since places that narrower blocks leave free are filled
// unevenly by the next launch; but where one wave does, as many as make blocks of up to 512 threads, whose barriers are sooner over.
// Where packs are of one element, more than twice `Unit` cost more than waves do. `registers`: of a thread, for each of the four.
// `Online`: one pass over memory makes all reductions (1), and nothing else is done with a row (2): then none has to stay, and blocks whose
// threads have four packs in flight at a time read 8192 rows of 32000 bfloat16s as fast as an H200 copies them, in 126 us where rows that stay
// took 205; nor where more blocks than multiprocessors would share them, each loading its part before it computes (128 rows of 65536 pairs of
// floats with three exponentials: 66 us, torch.compile's loop 32). 3: that pass is all, of few bytes: then a warp takes a row where there are rows enough,
// but for a last wave of few, as a block's reduction costs a thread as much as fifteen elements. `wanted_items`, `wanted_split`, `resident`: what a search has chosen instead, 0 for nothing (1: rows stay; 2: they do not).
template <int Unit, int Bytes, bool Clusters, int Online = 0>
RowPlan plan_rows(int64_t rows, int64_t packs, const int (&registers)[4], int wanted_items, int wanted_split, int resident = 0) {
    static const Multiprocessors device;
    RowPlan plan = {1, 0, 512};
    if (Online == 2 && resident != 1 && (resident == 2 || (rows > device.count && packs >= 512))) {
        const int threads = row_threads(packs, 4), most = rows < 2 * device.count ? 512 : 256;
        return {1, 0, threads < most ? threads : most};
    }
    if (Online == 1 && resident == 2) {
        return plan;
    }
    if (Online == 3 && wanted_items == 0 && resident != 1 && packs >= 64) {
        const int64_t places = int64_t{device.count} * (device.threads / 32), rest = rows % places;
        if (resident == 2 || rest == 0 || 4 * rest >= places || rows >= 4 * places) {
            return {1, kByWarps, 128};
        }
    }
    wanted_items = wanted_items == 0 && Unit > 1 ? 2 : wanted_items;
    if (Clusters) {
        constexpr int kLongest = 8 * Unit * row_width(8 * Unit, Bytes);
        const int64_t most = wanted_split > 0 ? rows * wanted_split : device.count;
        while ((wanted_split > 0 || packs >= 2048) && plan.split < 8 && rows * plan.split * 2 <= most) {
            plan.split *= 2;
        }
        while (packs > plan.split * kLongest && packs <= 8 * kLongest) {
            plan.split *= 2;
        }
        if (Online == 2 && resident == 0 && wanted_split == 0 && plan.split > 1 && rows * plan.split > device.count) {
            for (plan.split = 1; plan.split < 8 && rows * plan.split <= device.count; plan.split *= 2) {
            }
            return plan;
        }
        // Of more blocks than there are multiprocessors several are on one, unless they are wide: one loads while another waits.
        const auto widest = [&] { return row_threads((packs + plan.split - 1) / plan.split, 8 * Unit); };
        while (wanted_split == 0 && plan.split > 1 && plan.split < 8 && rows * plan.split > device.count && widest() > 512) {
            plan.split *= 2;
        }
    }
    const int64_t share = (packs + plan.split - 1) / plan.split;
    int64_t fewest = 0;
    for (int choice = 0; choice < 4; ++choice) {
        const int items = Unit << choice, threads = row_threads(share, items);
        if (threads == 0 || threads > row_width(items, Bytes) || (plan.split > 1 && choice % 2 == 0)) {
            continue;
        }
        if (plan.split > 1 || wanted_items > 0) {
            if (plan.items == 0 || (wanted_items > 0 ? items <= wanted_items * Unit : plan.threads > 512)) {
                plan.items = items;
                plan.threads = threads;
            }
            continue;
        }
        const int64_t waves = (rows + device.places(threads, registers[choice]) - 1) / device.places(threads, registers[choice]);
        if (plan.items == 0 || waves < fewest || (waves == 1 && plan.threads > 512)) {
            plan.items = items;
            plan.threads = threads;
            fewest = waves;
        }
    }
    return plan;
}
#endif

#if !defined(WITHOUT_COLUMN_PLANS)
// How a kernel of columns is launched for the size at hand: packs of columns and rows of threads of a block, blocks of a tile.
struct ColumnPlan {
    int lanes, split;
};

// Packs of a block whose threads reduce a pack each, alone.
constexpr int kAlone = 128;

// The tiles and parts of `packs` times `rows` that blocks of `threads` come through soonest. `registers`: of a thread, `alone_registers`
// of one that reduces a pack alone. `bytes`: what it loads of a row; `step`: what it waits for a row; `narrowest`: lanes of a tile. In
// hundredths of a microsecond, as fitted to timings on an H200: the rows that a thread waits for, one wave of blocks after another; what
// the busiest multiprocessor loads, of which the device's memory hides some; the memory alone. Tiles of four packs make short pieces of
// memory, clusters of two begin 1 us later, of four 1.9 us, and the barriers of each wave take 0.6 us that threads alone do without.
// `wanted_lanes`, `wanted_split`: what a search has chosen instead, 0 for nothing.
inline ColumnPlan plan_columns(
    int64_t packs, int64_t rows, int threads, int registers, int alone_registers, int bytes, int step, bool clusters, int narrowest,
    int wanted_lanes, int wanted_split) {
    static const Multiprocessors device;
    const int64_t loaded = bytes < 6 ? 6 : bytes, memory = packs * rows * bytes / (device.count * 280);
    ColumnPlan best = {wanted_lanes > 0 ? wanted_lanes : 32, 1};
    int64_t least = INT64_MAX / 2, barriers = 0;
    for (const int lanes : {32, 16, 8, 4, kAlone}) {
        if (lanes < narrowest) {
            continue;
        }
        const bool alone = lanes == kAlone;
        const int width = alone ? kAlone : threads;
        const int64_t places = device.places(width, alone ? alone_registers : registers), deep = width / lanes;
        for (int split = 1; split <= (clusters && !alone ? 8 : 1); split *= 2) {
            if ((wanted_lanes > 0 && lanes != wanted_lanes) || (clusters && wanted_split > 0 && split != wanted_split)) {
                continue;
            }
            const int64_t blocks = (packs + lanes - 1) / lanes * split, waves = (blocks + places - 1) / places;
            const int64_t steps = (rows + deep * split - 1) / (deep * split);
            const int64_t waiting = waves * steps * step;
            const int64_t loading = (blocks + device.count - 1) / device.count * steps * width * loaded / 440;
            const int64_t slower = waiting > loading ? waiting : loading;
            const int64_t busy = (slower > memory ? slower : memory) + slower / 4;
            const int64_t cost = (lanes == 4 ? busy * 3 / 2 : busy) + (split > 1 ? 10 + 45 * split : 0);
            if (cost < least + (alone ? barriers : 0)) {
                least = cost;
                barriers = 60 * waves;
                best = {lanes, split};
            }
        }
    }
    return best;
}
#endif

[[maybe_unused]] inline bool aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 16 == 0; }

}  // namespace

#include "streams.cuh"
#include "firsts.cuh"
#include "sorts.cuh"
#include "scans.cuh"
#include "phases.cuh"
#include "joins.cuh"
#include "buckets.cuh"
#include "ranks.cuh"
#include "teams.cuh"
