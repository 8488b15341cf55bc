// Phases of a block: every thread comes here, and none leaves before all are done.

#if !defined(WITHOUT_PHASES)
#include <initializer_list>
#include <type_traits>

constexpr int kPhaseBytes = 200 << 10;

// body(outer, inner) for every pair, `Ahead` of them at a time.
template <int Ahead, typename Span, typename Body>
__device__ __forceinline__ void for_pairs(Span span, int64_t outer, int64_t inner, Body body) {
    const int64_t count = outer * inner, step = span.blocks() * blockDim.x, first = span.block() * blockDim.x + threadIdx.x;
    if (outer == 1) {
#pragma unroll Ahead
        for (int64_t at = first; at < count; at += step) {
            body(int64_t{0}, at);
        }
    } else if (count < INT64_C(1) << 31) {
#pragma unroll Ahead
        for (unsigned at = static_cast<unsigned>(first); at < count; at += static_cast<unsigned>(step)) {
            body(int64_t{at / static_cast<unsigned>(inner)}, int64_t{at % static_cast<unsigned>(inner)});
        }
    } else {
        for (int64_t at = first; at < count; at += step) {
            body(at / inner, at % inner);
        }
    }
    __syncthreads();
}
// A thread of a grid has some at a time: with one load on its way for each, memory gives a third of what it can.
template <typename Span, typename Body>
__device__ __forceinline__ void phase_map(Span span, int64_t outer, int64_t inner, Body body) {
    for_pairs<std::is_same<Span, BlockSpan>::value ? 1 : 4>(span, outer, inner, body);
}
template <typename Span, typename Body>
__device__ __forceinline__ void phase_scatter(Span span, int64_t outer, int64_t inner, Body body) { phase_map(span, outer, inner, body); }

__device__ __forceinline__ bool is_shared([[maybe_unused]] const void* at) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
    return __isShared(at);
#else
    return false;
#endif
}

template <typename T>
__device__ __forceinline__ void phase_add(T* to, T value) { atomicAdd(to, value); }
template <>
__device__ __forceinline__ void phase_add<int64_t>(int64_t* to, int64_t value) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
    if (is_shared(to)) {  // where 64 bits are added by a loop, and 32 by one instruction
        unsigned* const words = reinterpret_cast<unsigned*>(to);
        const unsigned low = static_cast<unsigned>(value), before = atomicAdd(words, low);
        const unsigned high = static_cast<unsigned>(value >> 32) + (before + low < before);
        if (high != 0) {
            atomicAdd(words + 1, high);
        }
        return;
    }
#endif
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// What is there becomes join(that, value).
template <typename T, typename Join>
__device__ __forceinline__ void phase_join(T* to, T value, Join join) {
    using Word = typename std::conditional<sizeof(T) == 8, unsigned long long, unsigned>::type;
    static_assert(sizeof(T) == sizeof(Word), "compared and swapped in one step");
    Word* const word = reinterpret_cast<Word*>(to);
    for (Word before = *reinterpret_cast<volatile Word*>(to);;) {
        T now;
        memcpy(&now, &before, sizeof(T));
        now = join(now, value);
        Word wanted;
        memcpy(&wanted, &now, sizeof(T));
        if (wanted == before) {
            return;
        }
        const Word found = atomicCAS(word, before, wanted);
        if (found == before) {
            return;
        }
        before = found;
    }
}

// What every number is at least: minus infinity, or the least integer.
template <typename T>
__device__ __forceinline__ T least_of() {
    return T(0.5) != 0 ? static_cast<T>(-INFINITY) : static_cast<T>(UINT64_C(1) << (8 * sizeof(T) - 1));
}

// Of floats by one integer operation that nobody waits for: their bits are in order, those of negative ones in reverse. What is there is a number.
template <typename T>
__device__ __forceinline__ void phase_raise(T* to, T value) { phase_join(to, value, [](T a, T b) { return maximum(a, b); }); }
template <typename T>
__device__ __forceinline__ void phase_lower(T* to, T value) { phase_join(to, value, [](T a, T b) { return minimum(a, b); }); }
template <>
__device__ __forceinline__ void phase_raise<float>(float* to, float value) {
    const unsigned bits = value != value ? 0x7fffffffu : __float_as_uint(value);
    if (bits >> 31) {
        atomicMin(reinterpret_cast<unsigned*>(to), bits);
    } else {
        atomicMax(reinterpret_cast<int*>(to), static_cast<int>(bits));
    }
}
template <>
__device__ __forceinline__ void phase_lower<float>(float* to, float value) {
    const unsigned bits = value != value ? 0xffffffffu : __float_as_uint(value);
    if (bits >> 31) {
        atomicMax(reinterpret_cast<unsigned*>(to), bits);
    } else {
        atomicMin(reinterpret_cast<int*>(to), static_cast<int>(bits));
    }
}

// Whether what the grid adds to is so little that each block first adds to a copy in its own memory.
constexpr int64_t kFewPlaces = 2048;
__host__ __device__ __forceinline__ bool are_few(int64_t places, int64_t count) { return places <= kFewPlaces && 16 * places <= count; }

// How many of the steps from `begin` to `end` hold, which are the first ones: a warp asks of 32 at a time.
template <typename Holds>
__device__ __forceinline__ int64_t count_held(int64_t begin, int64_t end, Holds holds) {
    while (begin < end) {
        const int64_t step = (end - begin + 31) / 32, asked = begin + threadIdx.x % 32 * step;
        const int held = __popc(__ballot_sync(0xffffffffu, asked < end && holds(asked)));
        if (held == 0) {
            break;
        }
        end = begin + held * step < end ? begin + held * step : end;
        begin += (held - 1) * step + 1;
    }
    return begin;
}

// put(at, how many of `length` steps holds(step, at)), the first ones, and never fewer for a later `at`: a warp finds out for the first and
// the last of its elements, and each lane between these.
template <typename Span, typename Holds, typename Put>
__device__ __forceinline__ void phase_ranks(Span span, int64_t count, int64_t length, Holds holds, Put put) {
    constexpr int kOwn = 8, kEach = 32 * kOwn;
    const int64_t warps = blockDim.x / 32, step = span.blocks() * warps * kEach;
    for (int64_t first = (span.block() * warps + threadIdx.x / 32) * kEach; first < count; first += step) {
        const int64_t last = (first + kEach < count ? first + kEach : count) - 1;
        const int64_t least = count_held(0, length, [=](int64_t one) { return holds(one, first); });
        const int64_t most = count_held(least, length, [=](int64_t one) { return holds(one, last); });
        int64_t found[kOwn];
#pragma unroll
        for (int one = 0; one < kOwn; ++one) {
            found[one] = least;
        }
        int64_t ahead = 1;
        while (2 * ahead <= most - least) {
            ahead *= 2;
        }
        for (; ahead > 0; ahead /= 2) {
#pragma unroll
            for (int one = 0; one < kOwn; ++one) {
                const int64_t at = first + 32 * one + threadIdx.x % 32, asked = found[one] + ahead;
                found[one] = at <= last && asked <= most && holds(asked - 1, at) ? asked : found[one];
            }
        }
#pragma unroll
        for (int one = 0; one < kOwn; ++one) {
            const int64_t at = first + 32 * one + threadIdx.x % 32;
            if (at <= last) {
                put(at, found[one]);
            }
        }
    }
    __syncthreads();
}

// put(kept, the reduction of element(kept, step)): by the whole block where one is kept, by a warp where that is worth it, else by a thread.
// `Along`: elements of one lie side by side, so that a thread to each would load as many lines as there are threads.
template <typename T, bool Along, typename Span, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_fold(Span span, int64_t kept, int64_t length, T identity, Element element, Put put, Join join) {
    if constexpr (Span::split != 1) {  // one is kept
        const int64_t each = span.blocks() * blockDim.x;
        T value = identity;
        int64_t step = span.block() * blockDim.x + threadIdx.x;
        for (; step + 3 * each < length; step += 4 * each) {
            const T ahead[4] = {element(0, step), element(0, step + each), element(0, step + 2 * each), element(0, step + 3 * each)};
            value = join(value, join(join(ahead[0], ahead[1]), join(ahead[2], ahead[3])));
        }
        for (; step < length; step += each) {
            value = join(value, element(0, step));
        }
        value = team_reduce<1024, 0, Span::split>(value, identity, join);
        if (threadIdx.x == 0) {
            put(0, value);
        }
        __syncthreads();
        return;
    }
    __shared__ T partial[32];
    const int team = length >= 32 && (Along || kept <= 4 * blockDim.x) ? 32 : Along && length >= 8 ? 8 : 1;
    const int lanes = kept == 1 ? blockDim.x : team;
    const int teams = blockDim.x / lanes, lane = threadIdx.x % lanes;
    for (int64_t first = span.block() * teams; first < kept; first += span.blocks() * teams) {
        const int64_t at = first + threadIdx.x / lanes;
        T value = identity;
        if (at < kept) {
            for (int64_t step = lane; step < length; step += lanes) {
                value = join(value, element(at, step));
            }
        }
        for (int step = (lanes < 32 ? lanes : 32) / 2; step > 0; step /= 2) {
            value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
        }
        if (lanes > 32) {
            if (threadIdx.x % 32 == 0) {
                partial[threadIdx.x / 32] = value;
            }
            __syncthreads();
            value = partial[0];
            for (int other = 1; other < static_cast<int>(blockDim.x) / 32; ++other) {
                value = join(value, partial[other]);
            }
        }
        if (at < kept && lane == 0) {
            put(at, value);
        }
    }
    __syncthreads();
}

inline int64_t most_of(std::initializer_list<int64_t> counts) {
    int64_t most = 1;
    for (const int64_t count : counts) {
        most = count > most ? count : most;
    }
    return most;
}

// Units from which on blocks are narrow: one loads while another one on its multiprocessor waits at a barrier.
constexpr int64_t kManyUnits = 512;
constexpr int64_t kNarrowBytes = 16 << 10;  // so that four fit beside what scans and sorts have of their own
// Elements that a block has of a unit which a cluster shares (a guess: some four loads of a thread).
constexpr int64_t kLeastOfBlock = 4096;

// A block to a unit, or where few numbers are kept of one (`Clusters`) and units are few, up to eight; where a unit's memory is more than a block
// has, blocks as many as are there at once have memory of the stream's.
template <bool Clusters, typename... Parameters, typename... Arguments>
void launch_phases(
    void (*kernel)(Parameters...), int64_t units, int64_t most, int64_t unit_bytes, cudaStream_t stream, Arguments... arguments) {
    const int64_t widest = units >= kManyUnits && unit_bytes <= kNarrowBytes ? 256 : 1024;
    const int threads = static_cast<int>(most >= widest ? widest : (most + 31) / 32 * 32);
    unsigned char* workspace = nullptr;
    if (units == 0) {
        return;
    }
    int cluster = 1;
    if constexpr (Clusters) {
        static const Multiprocessors device;
        while (cluster < 8 && 2 * cluster * units <= device.count && most >= 2 * cluster * kLeastOfBlock) {
            cluster *= 2;
        }
    }
    // What phases themselves have of it may leave too little.
    const bool fits = unit_bytes <= kPhaseBytes &&
                      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(unit_bytes)) == cudaSuccess;
    static_cast<void>(cudaGetLastError());
    if (fits) {
        const unsigned blocks = static_cast<unsigned>(units < INT64_C(1) << 30 ? units * cluster : INT64_C(1) << 30);
        return launch_with_shared<false>(kernel, blocks, cluster, threads, static_cast<int>(unit_bytes), stream, arguments..., workspace, unit_bytes);
    }
    const int64_t most_blocks = 264, blocks = units < most_blocks ? units : most_blocks;
    if (cudaMallocAsync(&workspace, blocks * unit_bytes, stream) != cudaSuccess) {
        return;
    }
    launch_with_shared<false>(kernel, static_cast<unsigned>(blocks), 1, threads, 0, stream, arguments..., workspace, unit_bytes);
    cudaFreeAsync(workspace, stream);
}

// How much a phase of one unit is: `alone`: one block's; `wide`: rows of a scan, 0 of others; `steps`: launches; `places`: that it adds to, 0 if it does not;
// `scratch`: bytes that its launches hand on; `sorts`: whether it is a sort.
struct PhaseWork {
    int64_t count;
    bool alone;
    int64_t wide;
    int steps;
    int64_t places, scratch;
    bool sorts;
};

// Launches cost 2 us each: one token's moe_align of ten phases took 26 us so on an H200, and 9 by one block.
constexpr int64_t kSpreadFrom = 65536, kMostBlocks = 2112;
// What parts of columns come to.
constexpr int64_t kScanScratch = 2 * 65536 * 8;

// One unit: where a phase is much, each is a launch of its own, whose blocks share it. `kernels`: of all phases, and of each.
template <typename Kernel, typename... Arguments>
void launch_one_unit(
    std::initializer_list<Kernel> kernels, std::initializer_list<PhaseWork> phases, int64_t unit_bytes, cudaStream_t stream, Arguments... arguments) {
    int64_t most = 1, scratch = 0, work = 0;
    for (const PhaseWork& phase : phases) {
        most = phase.count > most ? phase.count : most;
        work += phase.sorts ? 16 * phase.count : phase.count;
        scratch = phase.steps > 1 && phase.scratch > scratch ? phase.scratch : scratch;
    }
    unsigned char* workspace = nullptr;
    const bool is_one_launch = phases.size() == 1 && phases.begin()->steps == 1;  // however many blocks share it
    if (work <= kSpreadFrom && !is_one_launch) {
        return launch_phases<false>(*kernels.begin(), 1, most, unit_bytes, stream, arguments..., 0, int64_t{1});
    }
    const int64_t bytes = unit_bytes + scratch;
    if (bytes > 0 && cudaMallocAsync(&workspace, bytes, stream) != cudaSuccess) {
        return;
    }
    const Kernel* kernel = kernels.begin();
    for (const PhaseWork& phase : phases) {
        ++kernel;
        const bool few = phase.places > 0 && are_few(phase.places, phase.count);
        const int threads = phase.alone || phase.wide || phase.sorts || few ? 1024 : 256;
        const int64_t each = few ? 4 * threads : threads, most_blocks = few ? kMostBlocks / 8 : kMostBlocks;
        const int64_t all = (phase.count + each - 1) / each, wanted = phase.alone ? 1 : all > phase.wide ? all : phase.wide;
        const unsigned blocks = static_cast<unsigned>(wanted < 1 ? 1 : wanted < most_blocks ? wanted : most_blocks);
        const int shared = phase.sorts ? kSortRun * 12 : few ? static_cast<int>(phase.places * 8) : 0;
        for (int step = 0; step < phase.steps; ++step) {
            launch_with_shared<false>(*kernel, blocks, 1, threads, shared, stream, arguments..., step, int64_t{1}, workspace, unit_bytes);
        }
    }
    if (workspace != nullptr) {
        cudaFreeAsync(workspace, stream);
    }
}
#endif
