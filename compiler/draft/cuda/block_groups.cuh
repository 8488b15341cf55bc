#include <cuda_pipeline.h>
constexpr int kGroupThreads = THREADS, kMostBlocks = 1024, kLine = 32, kPartWords = 8;  // words of a counter's line, of a block's part

template <typename T>
__device__ __forceinline__ void copy_pack(T* to, const void* from) {
    __pipeline_memcpy_async(to, from, sizeof(T));
}

// Every thread of the `sharers` neighbouring blocks of a group gets the fold of all their values. `meeting`: a counter for each group,
// zero at the launch, then two places for each block's part, used in `turn`.
template <typename T, typename Join>
__device__ T group_fold(T value, T identity, Join join, unsigned* meeting, int sharers, unsigned& turn) {
    constexpr int kWords = (sizeof(T) + 3) / 4;
    static_assert(kWords <= kPartWords, "a part is of eight words at most");
    value = block_fold(value, identity, join);
    const int group = blockIdx.x / sharers;
    volatile unsigned* const counter = meeting + group * kLine;
    volatile unsigned* const parts = meeting + kMostBlocks / 2 * kLine + (turn % 2 * kMostBlocks + group * sharers) * kPartWords;
    unsigned words[kWords];
    if (threadIdx.x == 0) {
        memcpy(words, &value, sizeof(T));
        for (int word = 0; word < kWords; ++word) {
            parts[blockIdx.x % sharers * kPartWords + word] = words[word];
        }
        __threadfence();
        atomicAdd(meeting + group * kLine, 1u);
    }
    ++turn;
    if (threadIdx.x < 32) {
        unsigned seen;
        do {
            seen = threadIdx.x == 0 ? *counter : 0u;
            seen = __shfl_sync(0xffffffffu, seen, 0);
        } while (static_cast<int>(seen - turn * sharers) < 0);
        __threadfence();
    }
    __syncthreads();
    value = identity;
    for (int other = threadIdx.x; other < sharers; other += blockDim.x) {
        for (int word = 0; word < kWords; ++word) {
            words[word] = parts[other * kPartWords + word];
        }
        T part;
        memcpy(&part, words, sizeof(T));
        value = join(value, part);
    }
    return block_fold(value, identity, join);
}

// Groups of blocks for rows of `packs`, all of them at once; false where the device has not the room for two of them.
template <int Slots, typename... Parameters, typename... Arguments>
bool launch_groups(void (*kernel)(Parameters...), int64_t rows, int64_t packs, int bytes, unsigned* meeting, cudaStream_t stream, Arguments... arguments) {
    int device = 0, multiprocessors = 0, blocks = 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device);
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, kernel, kGroupThreads, bytes);
    blocks = blocks * multiprocessors < kMostBlocks ? blocks * multiprocessors : kMostBlocks;
    const int64_t sharers = (packs + Slots * kGroupThreads - 1) / (Slots * kGroupThreads);
    if (sharers < 2 || 2 * sharers > blocks) {
        return false;
    }
    const int64_t groups = rows < blocks / sharers ? rows : blocks / sharers;
    cudaMemsetAsync(meeting, 0, groups * kLine * sizeof(unsigned), stream);
    cudaLaunchAttribute together = {};
    together.id = cudaLaunchAttributeCooperative;
    together.val.cooperative = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(static_cast<unsigned>(groups * sharers));
    config.blockDim = dim3(kGroupThreads);
    config.dynamicSmemBytes = bytes;
    config.stream = stream;
    config.attrs = &together;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, arguments..., meeting, static_cast<int>(sharers)) == cudaSuccess;
}
