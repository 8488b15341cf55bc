// Phases of a block: every thread comes here, and none leaves before all are done.

#if !defined(WITHOUT_PHASES)
#include <initializer_list>
#include <type_traits>

constexpr int kPhaseBytes = 200 << 10;

// body(outer, inner) for every pair.
template <typename Span, typename Body>
__device__ __forceinline__ void phase_map(Span span, int64_t outer, int64_t inner, Body body) {
    const int64_t count = outer * inner, step = span.blocks() * blockDim.x, first = span.block() * blockDim.x + threadIdx.x;
    if (outer == 1) {
        for (int64_t at = first; at < count; at += step) {
            body(int64_t{0}, at);
        }
    } else if (count < INT64_C(1) << 31) {
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
template <typename Span, typename Body>
__device__ __forceinline__ void phase_scatter(Span span, int64_t outer, int64_t inner, Body body) { phase_map(span, outer, inner, body); }

template <typename T>
__device__ __forceinline__ void phase_add(T* to, T value) { atomicAdd(to, value); }
template <>
__device__ __forceinline__ void phase_add<int64_t>(int64_t* to, int64_t value) {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
    if (__isShared(to)) {  // where 64 bits are added by a loop, and 32 by one instruction
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

// Whether what the grid adds to is so little that each block first adds to a copy in its own memory.
constexpr int64_t kFewPlaces = 2048;
__host__ __device__ __forceinline__ bool are_few(int64_t places, int64_t count) { return places <= kFewPlaces && 16 * places <= count; }

// The first step from `known` on, below `end`, that does not hold: most often it is one of the next two.
template <typename Holds>
__device__ __forceinline__ int64_t halve_from(int64_t known, int64_t end, Holds holds) {
    int64_t begin = known, beyond = known + 1 < end ? known + 1 : end;
    for (int round = 0; round < 2; ++round, beyond = end) {
        while (begin < beyond) {
            const int64_t middle = (begin + beyond) / 2;
            if (holds(middle)) {
                begin = middle + 1;
            } else {
                beyond = middle;
            }
        }
        if (begin == known) {
            break;
        }
    }
    return begin;
}

// Rows of a grid that go to one place one after the other, as those of a segment do, are added up first, eight loaded at once: 16 rows to a
// thread, or more where threads remain many, since what a place is found by is sought once for all of them.
template <bool Always, typename Span, typename T, typename Place, typename Value>
__device__ __forceinline__ void add_runs(Span span, int64_t outer, int64_t inner, T* to, Place place, Value value) {
    constexpr int kAhead = 8;
    const int64_t each = outer * inner / (INT64_C(1) << 19) / kAhead * kAhead, run = each < 16 ? 16 : each < 64 ? each : 64;
    phase_map(span, (outer + run - 1) / run, inner, [=](int64_t chunk, int64_t at) {
        int64_t current = -1, known = 0;
        T sum = T(0);
        const int64_t end = (chunk + 1) * run < outer ? (chunk + 1) * run : outer;
        for (int64_t first = chunk * run; first < end; first += kAhead) {
            T values[kAhead];
#pragma unroll
            for (int ahead = 0; ahead < kAhead; ++ahead) {
                values[ahead] = Always && first + ahead < end ? value(first + ahead, at) : T(0);
            }
#pragma unroll
            for (int ahead = 0; ahead < kAhead; ++ahead) {
                if (first + ahead < end) {
                    const int64_t wanted = place(first + ahead, at, known);
                    if (wanted != current) {
                        if (current >= 0) {
                            phase_add(to + current, sum);
                        }
                        current = wanted;
                        sum = T(0);
                    }
                    if (current >= 0) {
                        sum = sum + (Always ? values[ahead] : value(first + ahead, at));
                    }
                }
            }
        }
        if (current >= 0) {
            phase_add(to + current, sum);
        }
    });
}

// A thread's four elements lie a quarter of all apart: its loads are in flight together, and beside its neighbours'.
template <bool Always, typename Span, typename T, typename Place, typename Value>
__device__ __forceinline__ void add_quarters(Span span, int64_t outer, int64_t inner, T* to, Place place, Value value) {
    const bool flat = outer == 1;
    const int64_t quarter = ((flat ? inner : outer) + 3) / 4;
    phase_map(span, flat ? 1 : quarter, flat ? quarter : inner, [=](int64_t row, int64_t at) {
        int64_t wanted[4];
        T values[4];
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            const int64_t own_row = flat ? 0 : row + part * quarter, own_at = flat ? at + part * quarter : at;
            int64_t known = 0;
            const bool is_one = own_row < outer && own_at < inner;
            wanted[part] = is_one ? place(own_row, own_at, known) : -1;
            values[part] = (Always ? is_one : wanted[part] >= 0) ? value(own_row, own_at) : T(0);
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            if (wanted[part] >= 0) {
                phase_add(to + wanted[part], values[part]);
            }
        }
    });
}

// Adds value(outer, inner) to the element, of `places`, that place(outer, inner, known) names, none below zero. `known`: what the place
// found out last, of a row before.
template <bool Always, typename Span, typename T, typename Place, typename Value>
__device__ __forceinline__ void phase_add_all(Span span, int64_t outer, int64_t inner, T* to, int64_t places, Place place, Value value) {
    if constexpr (!std::is_same<Span, BlockSpan>::value) {
        if (span.spread && are_few(places, outer * inner)) {
            T* const own = reinterpret_cast<T*>(span.shared);
            for (int at = threadIdx.x; at < places; at += blockDim.x) {
                own[at] = T(0);
            }
            __syncthreads();
            add_quarters<Always>(span, outer, inner, own, place, value);
            for (int at = threadIdx.x; at < places; at += blockDim.x) {
                if (own[at] != T(0)) {
                    phase_add(to + at, own[at]);
                }
            }
            return;
        }
        if (span.spread && inner > 1 && outer * inner >= INT64_C(1) << 19) {
            return add_runs<Always>(span, outer, inner, to, place, value);
        }
    }
    add_quarters<Always>(span, outer, inner, to, place, value);
}

// put(kept, the reduction of element(kept, step)): by the whole block where one is kept, by a warp where that is worth it, else by a thread.
template <typename T, typename Span, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_fold(Span span, int64_t kept, int64_t length, T identity, Element element, Put put, Join join) {
    __shared__ T partial[32];
    const int lanes = kept == 1 ? blockDim.x : length >= 32 && kept <= 4 * blockDim.x ? 32 : 1;
    const int teams = blockDim.x / lanes, lane = threadIdx.x % lanes;
    for (int64_t first = span.block() * teams; first < kept; first += span.blocks() * teams) {
        const int64_t at = first + threadIdx.x / lanes;
        T value = identity;
        if (at < kept) {
            for (int64_t step = lane; step < length; step += lanes) {
                value = join(value, element(at, step));
            }
        }
        if (lanes > 1) {
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
            }
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

// A row after the other by the whole block, four neighbours to a thread: what is before a warp's and before a block's is joined on.
template <typename T, typename Span, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_scan_rows(Span span, int64_t rows, int64_t length, T* partial, T identity, Element element, Put put, Join join) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    for (int64_t row = span.block(); row < rows; row += span.blocks()) {
        T carried = identity;
        for (int64_t first = 0; first < length; first += blockDim.x * 4) {
            const int64_t begin = first + threadIdx.x * 4;
            T own[4], all = identity;
#pragma unroll
            for (int at = 0; at < 4; ++at) {
                own[at] = all = begin + at < length ? join(all, element(row, begin + at)) : all;
            }
            for (int back = 1; back < 32; back *= 2) {
                const T before = __shfl_up_sync(0xffffffffu, all, back);
                all = lane >= back ? join(before, all) : all;
            }
            if (lane == 31) {
                partial[warp] = all;
            }
            __syncthreads();
            T ahead = carried;
            for (int other = 0; other < warps; ++other) {
                ahead = other < warp ? join(ahead, partial[other]) : ahead;
                carried = join(carried, partial[other]);
            }
            const T before = __shfl_up_sync(0xffffffffu, all, 1);
            ahead = lane > 0 ? join(ahead, before) : ahead;
#pragma unroll
            for (int at = 0; at < 4; ++at) {
                if (begin + at < length) {
                    put(row, begin + at, join(ahead, own[at]));
                }
            }
            __syncthreads();
        }
    }
}

// log(exp(a) + exp(b)); of infinities and NaN the larger.
template <typename T>
__device__ __forceinline__ T log_add(T a, T b) {
    const T most = maximum(a, b);
    return most - most == T(0) ? most + log1p(exp(minimum(a, b) - most)) : most;
}

// put(column, step, the reduction up to that step): a column by as many threads as there are for it, each of which takes a part of it twice.
template <typename T, typename Span, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_scan(Span span, int64_t columns, int64_t length, T identity, Element element, Put put, Join join) {
    __shared__ T partial[1024];
    if (columns <= span.blocks() && blockDim.x % 32 == 0) {
        phase_scan_rows(span, columns, length, partial, identity, element, put, join);
        return;
    }
    const int threads = blockDim.x, parts = columns >= threads ? 1 : threads / static_cast<int>(columns);
    const int across = parts == 1 ? threads : static_cast<int>(columns), part = threadIdx.x / across;
    const int64_t each = (length + parts - 1) / parts, begin = part * each, end = begin + each < length ? begin + each : length;
    for (int64_t first = span.block() * across; first < columns; first += span.blocks() * across) {
        const int64_t column = first + threadIdx.x % across;
        const bool is_one = column < columns && part < parts;
        T value = identity;
        if (parts > 1) {
            for (int64_t step = begin; is_one && step < end; ++step) {
                value = join(value, element(column, step));
            }
            partial[threadIdx.x] = value;
            __syncthreads();
            for (int back = 1; back < parts; back *= 2) {
                const bool has = part >= back;
                const T before = has ? partial[threadIdx.x - back * across] : identity, own = partial[threadIdx.x];
                __syncthreads();
                if (has) {
                    partial[threadIdx.x] = join(before, own);
                }
                __syncthreads();
            }
            value = part > 0 ? partial[threadIdx.x - across] : identity;
        }
        for (int64_t step = begin; is_one && step < end; ++step) {
            value = join(value, element(column, step));
            put(column, step, value);
        }
        __syncthreads();
    }
}

// put(row, the value that would stand at `rank` of a row in order): eight bits at a time, the highest first, by counting.
template <bool Falling, typename T, typename Span, typename Rank, typename Element, typename Put>
__device__ __forceinline__ void phase_nth(Span span, int64_t rows, int64_t length, Rank rank, Element element, Put put) {
    __shared__ int counts[256];
    __shared__ int64_t left;
    __shared__ uint64_t known;
    const auto key_of = [&](int64_t row, int64_t at) { return Falling ? ~in_order<T>(element(row, at)) : in_order<T>(element(row, at)); };
    for (int64_t row = span.block(); row < rows; row += span.blocks()) {
        const int64_t asked = rank(row), wanted = asked < 0 ? 0 : asked < length ? asked : length - 1;
        if (length <= 128) {
            for (int64_t at = threadIdx.x; at < length; at += blockDim.x) {
                const uint64_t own = key_of(row, at);
                int64_t before = 0;
                for (int64_t other = 0; other < length; ++other) {
                    const uint64_t key = key_of(row, other);
                    before += key < own || (key == own && other < at);
                }
                if (before == wanted) {
                    put(row, element(row, at));
                }
            }
            continue;
        }
        if (threadIdx.x == 0) {
            left = wanted;
            known = Falling && sizeof(T) == 4 && T(0.5) != 0 ? UINT64_C(0xffffffff00000000) : 0;
        }
        for (int shift = sizeof(T) == 4 && T(0.5) != 0 ? 24 : 56; shift >= 0; shift -= 8) {
            for (int at = threadIdx.x; at < 256; at += blockDim.x) {
                counts[at] = 0;
            }
            __syncthreads();
            const uint64_t above = known;
            for (int64_t at = threadIdx.x; at < length; at += blockDim.x) {
                const uint64_t key = key_of(row, at);
                if (shift == 56 || (key ^ above) >> (shift + 8) == 0) {
                    atomicAdd(&counts[key >> shift & 255], 1);
                }
            }
            __syncthreads();
            if (threadIdx.x == 0) {
                uint64_t bin = 0;
                while (counts[bin] <= left) {
                    left -= counts[bin++];
                }
                known = above | bin << shift;
            }
            __syncthreads();
        }
        for (int64_t at = threadIdx.x; at < length; at += blockDim.x) {
            if (key_of(row, at) == known) {
                put(row, element(row, at));
            }
        }
        __syncthreads();
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

// A block to a unit; where a unit's memory is more than a block has, blocks as many as are there at once have memory of the stream's.
template <typename... Parameters, typename... Arguments>
void launch_phases(
    void (*kernel)(Parameters...), int64_t units, int64_t most, int64_t unit_bytes, cudaStream_t stream, Arguments... arguments) {
    const int threads = most >= 1024 ? 1024 : static_cast<int>((most + 31) / 32 * 32);
    unsigned char* workspace = nullptr;
    if (units == 0) {
        return;
    }
    // What phases themselves have of it may leave too little.
    const bool fits = unit_bytes <= kPhaseBytes &&
                      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(unit_bytes)) == cudaSuccess;
    static_cast<void>(cudaGetLastError());
    if (fits) {
        const unsigned blocks = static_cast<unsigned>(units < INT64_C(1) << 30 ? units : INT64_C(1) << 30);
        return launch_with_shared<false>(kernel, blocks, 1, threads, static_cast<int>(unit_bytes), stream, arguments..., workspace, unit_bytes);
    }
    const int64_t most_blocks = 264, blocks = units < most_blocks ? units : most_blocks;
    if (cudaMallocAsync(&workspace, blocks * unit_bytes, stream) != cudaSuccess) {
        return;
    }
    launch_with_shared<false>(kernel, static_cast<unsigned>(blocks), 1, threads, 0, stream, arguments..., workspace, unit_bytes);
    cudaFreeAsync(workspace, stream);
}

// How much a phase of one unit is: `alone`: one block's; `steps`: launches; `places`: that it adds to, 0 if it does not.
struct PhaseWork {
    int64_t count;
    bool alone;
    int steps;
    int64_t places;
};

// Launches cost 2 us each: one token's moe_align of ten phases took 26 us so on an H200, and 9 by one block.
constexpr int64_t kSpreadFrom = 65536, kMostBlocks = 2112;

// One unit: where a phase is much, each is a launch of its own, whose blocks share it.
template <typename... Parameters, typename... Arguments>
void launch_one_unit(
    void (*kernel)(Parameters...), std::initializer_list<PhaseWork> phases, int64_t unit_bytes, cudaStream_t stream, Arguments... arguments) {
    int64_t most = 1, sorted = 0, work = 0;
    for (const PhaseWork& phase : phases) {
        most = phase.count > most ? phase.count : most;
        work += phase.steps > 1 ? 16 * phase.count : phase.count;
        sorted = phase.steps > 1 && phase.count > sorted ? phase.count : sorted;
    }
    unsigned char* workspace = nullptr;
    if (work <= kSpreadFrom) {
        return launch_phases(kernel, 1, most, unit_bytes, stream, arguments..., -1, int64_t{1});
    }
    const int64_t bytes = unit_bytes + 16 * sorted;
    if (bytes > 0 && cudaMallocAsync(&workspace, bytes, stream) != cudaSuccess) {
        return;
    }
    int only = 0;
    for (const PhaseWork& phase : phases) {
        const bool few = phase.places > 0 && are_few(phase.places, phase.count);
        const int threads = phase.alone || phase.steps > 1 || few ? 1024 : 256;
        const int64_t each = few ? 4 * threads : threads, most_blocks = few ? kMostBlocks / 8 : kMostBlocks;
        const int64_t wanted = phase.alone ? 1 : (phase.count + each - 1) / each;
        const unsigned blocks = static_cast<unsigned>(wanted < 1 ? 1 : wanted < most_blocks ? wanted : most_blocks);
        const int shared = phase.steps > 1 ? kSortRun * 12 : few ? static_cast<int>(phase.places * 8) : 0;
        for (int step = 0; step < phase.steps; ++step) {
            launch_with_shared<false>(kernel, blocks, 1, threads, shared, stream, arguments..., 2 * only + step, int64_t{1}, workspace, unit_bytes);
        }
        ++only;
    }
    if (workspace != nullptr) {
        cudaFreeAsync(workspace, stream);
    }
}
#endif
