// Keys and values that stream by; prelude.cuh brings what this calls.

#if !defined(WITHOUT_STREAMS)
#include <cuda_pipeline.h>

// Brings a pack into this thread's own place of the block's memory, whenever it comes.
template <typename T, int Items>
__device__ __forceinline__ void bring(Pack<T, Items>* to, const T* from) {
    constexpr int kBytes = sizeof(Pack<T, Items>), kEach = kBytes % 16 == 0 ? 16 : kBytes % 8 == 0 ? 8 : kBytes % 4 == 0 ? 4 : 0;
    if constexpr (kEach == 0) {
        *to = load_pack<Items>(from);
    } else {
#pragma unroll
        for (int at = 0; at < kBytes; at += kEach) {
            __pipeline_memcpy_async(reinterpret_cast<unsigned char*>(to) + at, reinterpret_cast<const unsigned char*>(from) + at, kEach);
        }
    }
}

// The same of 16 bytes, which are zeros where none `is_one`.
template <typename T>
__device__ __forceinline__ void bring_or_zero(Pack<T, 8>* to, const unsigned char* from, bool is_one) {
    __pipeline_memcpy_async(to, from, 16, is_one ? 0 : 16);
}

// Of `Lanes` neighbouring threads with `Count` values each, no more than there are threads: the sum of value `lane / (Lanes / Count)`.
template <int Lanes, int Count>
__device__ __forceinline__ float sum_of_lanes(float (&values)[Count], int lane) {
    int left = Count;
#pragma unroll
    for (int step = Lanes / 2; step > 0; step /= 2) {
        if (left == 1) {
            values[0] += __shfl_xor_sync(0xffffffffu, values[0], step);
            continue;
        }
        left /= 2;
        const bool is_upper = (lane & step) != 0;
#pragma unroll
        for (int one = 0; one < Count / 2; ++one) {
            if (one < left) {
                const float sent = is_upper ? values[one] : values[one + left], kept = is_upper ? values[one + left] : values[one];
                values[one] = kept + __shfl_xor_sync(0xffffffffu, sent, step);
            }
        }
    }
    return values[0];
}

constexpr int kStreamBytes = 220 << 10, kStreamShare = 110 << 10;  // of a block, and where two share a multiprocessor
// As much of a multiprocessor's memory is shared as can be, so that as many blocks as have room are there.
template <typename Kernel>
int ask_for_shared(Kernel kernel) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributePreferredSharedMemoryCarveout, 100);
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kStreamBytes);
}

// Between the scores of a query and those of the next one: so lanes of eight queries and of four keys find them in banks of their own.
constexpr int kStreamGap = 4;

// How keys that stream by are shared: queries of the same keys that a block takes, blocks of a cluster, keys of a block.
struct StreamPlan {
    int group, split, span, bytes;
};

// `ring`: bytes of a block for keys and values on their way, behind the scores; `tiles`: where tensor cores multiply, 0 if they never do. Twice as many blocks as multiprocessors where there are keys for them, 64 each at least; scores of a block that leave room for another
// one; where the keys are too many for all queries at once, fewer queries.
inline StreamPlan plan_stream(int64_t units, int64_t group, int64_t keys, int most, int columns, int ring, int tiles, bool clusters) {
    static const Multiprocessors machine;
    StreamPlan plan{1, 1, 0, 0};
    while (plan.group < most && plan.group < group) {
        plan.group *= 2;
    }
    while (true) {
        const int64_t blocks = units * ((group + plan.group - 1) / plan.group);
        const auto span = [&] { return (keys + plan.split * 32 - 1) / (plan.split * 32) * 32; };
        const auto bytes = [&] { return plan.group * ((span() > 8 * columns ? span() : 8 * columns) + kStreamGap) * 4 + (tiles > 0 && plan.group == 8 ? tiles : ring); };
        plan.split = 1;
        while (clusters && plan.split < 8 && keys > plan.split * 64 &&
               (blocks * plan.split < 2 * machine.count || bytes() > kStreamShare)) {
            plan.split *= 2;
        }
        plan.span = static_cast<int>(span());
        plan.bytes = static_cast<int>(bytes());
        if (bytes() <= kStreamBytes || plan.group == 1) {
            return plan;
        }
        plan.group /= 2;
    }
}

// The same of eight queries whose keys and values go by together, 128 keys at a time, by blocks of `bytes` for what is on its way: as many blocks
// of a cluster as are soonest done; a block begins and ends in as long as some 256 keys take. `places`: clusters of each size that run at once.
template <typename Places>
StreamPlan plan_pass(const Places& places, int64_t units, int64_t group, int64_t keys, int bytes, bool clusters) {
    const int64_t blocks = units * ((group + 7) / 8);
    StreamPlan plan{8, 1, 0, bytes};
    int64_t least = 0;
    for (int split = 1, doubled = 0; split <= (clusters ? 8 : 1) && (split == 1 || keys >= split * 128); split *= 2, ++doubled) {
        const int64_t waves = (blocks + places.of[doubled] - 1) / places.of[doubled], time = waves * ((keys + split * 128 - 1) / (split * 128) + 2);
        if (split == 1 || time < least) {
            least = time;
            plan.split = split;
        }
    }
    return plan;
}
#endif
