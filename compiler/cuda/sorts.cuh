// Sorts of phases; prelude.cuh brings what they call.

#if !defined(WITHOUT_PHASES)
// Which threads share a phase: a block's, whose unit it is (`split`: blocks that share one, 0 for as many as a cluster has),
struct BlockSpan {
    static constexpr bool spread = false;
    static constexpr int step = 0, split = 1;
    __device__ __forceinline__ int64_t block() const { return 0; }
    __device__ __forceinline__ int64_t blocks() const { return 1; }
    // Its memory, and the units that it has.
    explicit __device__ __forceinline__ BlockSpan(int = 0) {}
    __device__ __forceinline__ unsigned char* memory(unsigned char* shared, unsigned char* workspace, int64_t bytes) const {
        return workspace != nullptr ? workspace + blockIdx.x * bytes : shared;
    }
    __device__ __forceinline__ int64_t first() const { return blockIdx.x; }
    __device__ __forceinline__ int64_t stride() const { return gridDim.x; }
    __device__ __forceinline__ int64_t take(int64_t turn, int64_t) const { return turn; }
};

// or, where there is one unit and the host launches every phase by itself, all of the grid's. `step`: of a sort. `scratch`: its memory; `shared`: a block's.
struct GridSpan {
    static constexpr int split = 1;
    bool spread;
    int step;
    unsigned char *scratch, *shared;
    __device__ __forceinline__ int64_t block() const { return spread ? blockIdx.x : 0; }
    __device__ __forceinline__ int64_t blocks() const { return spread ? gridDim.x : 1; }
};

#if !defined(WITHOUT_CLUSTERS)
// A cluster's, each of whose blocks holds the few numbers that are kept of the unit.
struct ClusterSpan : BlockSpan {
    static constexpr int split = 0;
    __device__ __forceinline__ int64_t block() const { return cooperative_groups::this_cluster().block_rank(); }
    __device__ __forceinline__ int64_t blocks() const { return cooperative_groups::this_cluster().num_blocks(); }
    __device__ __forceinline__ int64_t first() const { return blockIdx.x / blocks(); }
    __device__ __forceinline__ int64_t stride() const { return gridDim.x / blocks(); }
};
#endif
// Bits that are in the order of the values; what is no number is the largest, as in torch.
template <typename T>
__device__ __forceinline__ uint64_t in_order(T value) { return static_cast<uint64_t>(static_cast<int64_t>(value)) ^ UINT64_C(1) << 63; }
template <>
__device__ __forceinline__ uint64_t in_order<int32_t>(int32_t value) { return static_cast<uint32_t>(value) ^ 0x80000000u; }
template <>
__device__ __forceinline__ uint64_t in_order<float>(float value) {
    const unsigned bits = __float_as_uint(value == 0.0f ? 0.0f : value);
    return value != value ? 0xffffffffu : bits >> 31 ? ~bits : bits | 0x80000000u;
}

// The number that these bits stand for.
template <typename T>
__device__ __forceinline__ T of_order(uint32_t bits) { return static_cast<T>(bits ^ 0x80000000u); }
template <>
__device__ __forceinline__ float of_order<float>(uint32_t bits) { return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits); }

// Of a sort whose places nobody reads.
struct NoPlaces {
    struct Place {
        __device__ __forceinline__ void operator=(int64_t) const {}
        __device__ __forceinline__ operator int64_t() const { return 0; }
    };
    __device__ __forceinline__ NoPlaces operator+(int64_t) const { return {}; }
    __device__ __forceinline__ Place operator[](int64_t) const { return {}; }
};

template <bool Falling, typename T>
__device__ __forceinline__ bool stands_before(T a, int64_t place_a, T b, int64_t place_b) {
    const uint64_t one = in_order<T>(a), other = in_order<T>(b);
    return one != other ? (Falling ? one > other : one < other) : place_a < place_b;
}

// Rows in order by a bitonic network. Steps within 64 neighbours are a warp's own.
template <bool Falling, typename T, typename Stored, typename Places>
__device__ __forceinline__ void bitonic_sort(unsigned rows, unsigned length, Stored* values, Places places) {
    unsigned half = 0;
    while ((2u << half) < length) {
        ++half;
    }
    const unsigned pairs = rows << half;
    for (unsigned size = 0; size <= half; ++size) {
        for (int step = static_cast<int>(size); step >= 0; --step) {
            for (unsigned pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
                const unsigned row = (pair >> half) * length, at = pair & ((1u << half) - 1), within = at & ((1u << step) - 1);
                const unsigned first = (at - within) * 2, low = row + first + within;
                const unsigned second = step == static_cast<int>(size) ? first + (2u << step) - 1 - within : first + within + (1u << step);
                const unsigned high = row + second;
                if (second < length && stands_before<Falling, T>(values[high], places[high], values[low], places[low])) {
                    const Stored value = values[low];
                    const int64_t place = places[low];
                    values[low] = values[high];
                    places[low] = static_cast<int64_t>(places[high]);
                    values[high] = value;
                    places[high] = place;
                }
            }
            const int next = step > 0 ? step - 1 : static_cast<int>(size) + 1;
            if (step > 5 || next > 5) {
                __syncthreads();
            } else {
                __syncwarp();
            }
        }
    }
    __syncthreads();
}

constexpr unsigned kSortRun = 2048;

// Of a sort that the grid shares. Step 0: runs of a row, each by a block in its own memory; step 1: an element's rank is how many stand
// before it in all of the row's runs.
template <bool Falling, typename T, typename Stored, typename Places, typename Element>
__device__ __forceinline__ void sort_over_grid(GridSpan span, int64_t rows, int64_t length, Stored* values, Places places, Element element) {
    Stored* const run_values = reinterpret_cast<Stored*>(span.scratch);
    int64_t* const run_places = reinterpret_cast<int64_t*>(span.scratch + rows * length * 8);
    const int64_t runs = (length + kSortRun - 1) / kSortRun;
    if (span.step == 0) {
        Stored* const own_values = reinterpret_cast<Stored*>(span.shared);
        int* const own_places = reinterpret_cast<int*>(span.shared + kSortRun * 8);
        for (int64_t run = blockIdx.x; run < rows * runs; run += gridDim.x) {
            const int64_t row = run / runs, first = run % runs * kSortRun;
            const unsigned count = static_cast<unsigned>(length - first < kSortRun ? length - first : kSortRun);
            for (unsigned at = threadIdx.x; at < count; at += blockDim.x) {
                own_values[at] = element(row, first + at);
                own_places[at] = static_cast<int>(at);
            }
            __syncthreads();
            bitonic_sort<Falling, T>(1, count, own_values, own_places);
            for (unsigned at = threadIdx.x; at < count; at += blockDim.x) {
                run_values[row * length + first + at] = own_values[at];
                run_places[row * length + first + at] = first + own_places[at];
            }
            __syncthreads();
        }
        return;
    }
    for (int64_t at = int64_t{blockIdx.x} * blockDim.x + threadIdx.x; at < rows * length; at += int64_t{gridDim.x} * blockDim.x) {
        const int64_t row = at / length * length, own = (at - row) / kSortRun, place = run_places[at];
        const Stored value = run_values[at];
        int64_t rank = (at - row) % kSortRun;
        for (int64_t run = 0; run < runs; ++run) {
            if (run == own) {
                continue;
            }
            const int64_t first = row + run * kSortRun;
            int64_t begin = first, end = row + (run + 1 < runs ? (run + 1) * kSortRun : length);
            while (begin < end) {
                const int64_t middle = (begin + end) / 2;
                if (stands_before<Falling, T>(run_values[middle], run_places[middle], value, place)) {
                    begin = middle + 1;
                } else {
                    end = middle;
                }
            }
            rank += begin - first;
        }
        values[row + rank] = value;
        places[row + rank] = place;
    }
}

// Memory of a block in which a scan's or a sort's elements change hands; one for all of a kernel's.
constexpr int kScanBytes = 1024 * 9 * 4;
__device__ __forceinline__ unsigned char* scan_memory() {
    __shared__ int64_t memory[kScanBytes / 8];
    return reinterpret_cast<unsigned char*>(memory);
}

// A row of at most 2048 by a bitonic network whose elements stay in registers, `Own` neighbours to a thread: what is compared is their bits in order
// with their place behind, if that is read; partners within a warp change hands there, others in shared memory.
template <bool Falling, int Own, typename T, typename Stored, typename Places, typename Element>
__device__ __forceinline__ void sort_in_registers(int length, int padded, void* memory, Stored* values, Places places, Element element) {
    constexpr bool kAlone = std::is_same<Places, NoPlaces>::value;
    using Key = typename std::conditional<kAlone, uint32_t, uint64_t>::type;
    Key* const held = static_cast<Key*>(memory);
    const int first = threadIdx.x * Own;
    const bool is_one = first < padded;
    Key own[Own];
#pragma unroll
    for (int at = 0; at < Own; ++at) {
        own[at] = static_cast<Key>(~UINT64_C(0));
        if (first + at < length) {
            const uint64_t key = in_order<T>(element(int64_t{first + at})), wanted = Falling ? key ^ 0xffffffffu : key;
            own[at] = static_cast<Key>(kAlone ? wanted : wanted << 32 | static_cast<unsigned>(first + at));
        }
    }
    const auto keep = [&](int at, Key other, int size, int step) {
        const bool less = ((first + at) & size) == 0, is_low = ((first + at) & step) == 0;
        own[at] = (own[at] < other) == (less == is_low) ? own[at] : other;
    };
    for (int size = 2; size <= padded; size *= 2) {
        int step = size / 2;
        for (; step >= 32 * Own; step /= 2) {
#pragma unroll
            for (int at = 0; at < Own && is_one; ++at) {
                held[first + at] = own[at];
            }
            __syncthreads();
#pragma unroll
            for (int at = 0; at < Own && is_one; ++at) {
                keep(at, held[(first + at) ^ step], size, step);
            }
            __syncthreads();
        }
        for (; step >= Own; step /= 2) {
#pragma unroll
            for (int at = 0; at < Own; ++at) {
                keep(at, __shfl_xor_sync(0xffffffffu, own[at], step / Own), size, step);
            }
        }
#pragma unroll
        for (int near = Own / 2; near > 0; near /= 2) {
#pragma unroll
            for (int at = 0; at < Own && near < size; ++at) {
                const Key a = own[at], b = own[at ^ near];
                if ((at & near) == 0) {
                    const bool swaps = (a > b) == (((first + at) & size) == 0);
                    own[at] = swaps ? b : a;
                    own[at ^ near] = swaps ? a : b;
                }
            }
        }
    }
#pragma unroll
    for (int at = 0; at < Own; ++at) {
        if (first + at < length && kAlone) {
            values[first + at] = of_order<T>(static_cast<uint32_t>(Falling ? ~own[at] : own[at]));
        } else if (first + at < length) {
            const int64_t place = static_cast<unsigned>(own[at]);
            values[first + at] = element(place);
            places[first + at] = place;
        }
    }
    __syncthreads();
}

constexpr int kMostInRegisters = 2048;
static_assert(kMostInRegisters * 8 <= kScanBytes, "its elements have room");

// Each of `rows` in order, equal ones as they stood: by counting those before each where rows are short, else by a bitonic network.
template <bool Falling, typename T, typename Span, typename Stored, typename Places, typename Element>
__device__ __forceinline__ void phase_sort(Span span, int64_t rows, int64_t length, Stored* values, Places places, Element element) {
    if constexpr (!std::is_same<Span, BlockSpan>::value) {
        if (span.spread) {
            return sort_over_grid<Falling, T>(span, rows, length, values, places, element);
        }
    }
    if constexpr (sizeof(T) == 4) {
        void* const held = scan_memory();
        int padded = 64, threads = 32;
        while (padded < length) {
            padded *= 2;
        }
        while (2 * threads <= static_cast<int>(blockDim.x)) {
            threads *= 2;
        }
        const int own = padded / threads;
        if (length > 32 && length <= kMostInRegisters && own <= 8) {
            for (int64_t row = 0; row < rows; ++row) {
                const auto of_row = [&](int64_t at) { return element(row, at); };
                Stored* const sorted = values + row * length;
                const Places stood = places + row * length;
                if (own <= 1) {
                    sort_in_registers<Falling, 1, T>(static_cast<int>(length), padded, held, sorted, stood, of_row);
                } else if (own <= 2) {
                    sort_in_registers<Falling, 2, T>(static_cast<int>(length), padded, held, sorted, stood, of_row);
                } else if (own <= 4) {
                    sort_in_registers<Falling, 4, T>(static_cast<int>(length), padded, held, sorted, stood, of_row);
                } else {
                    sort_in_registers<Falling, 8, T>(static_cast<int>(length), padded, held, sorted, stood, of_row);
                }
            }
            return;
        }
    }
    const unsigned count = static_cast<unsigned>(rows * length), whole = static_cast<unsigned>(length);
    for (unsigned at = threadIdx.x; at < count; at += blockDim.x) {
        values[at] = element(int64_t{at / whole}, int64_t{at % whole});
        places[at] = at % whole;
    }
    __syncthreads();
    if (length > 32 || length > static_cast<int64_t>(blockDim.x)) {
        return bitonic_sort<Falling, T>(static_cast<unsigned>(rows), whole, values, places);
    }
    const unsigned each = blockDim.x / whole * whole;
    for (unsigned first = 0; first < count; first += each) {
        const unsigned at = first + threadIdx.x, row = at / whole * whole;
        const bool is_one = threadIdx.x < each && at < count;
        unsigned rank = 0;
        Stored own = Stored();
        if (is_one) {
            own = values[at];
            for (unsigned other = 0; other < whole; ++other) {
                rank += stands_before<Falling, T>(values[row + other], other, own, at - row);
            }
        }
        __syncthreads();
        if (is_one) {
            values[row + rank] = own;
            places[row + rank] = at - row;
        }
        __syncthreads();
    }
}

// The `First` in front of each row, by a warp to a row: a lane holds the best of its own until that is taken. Long rows are sorted.
template <int First, bool Falling, typename T, typename Span, typename Stored, typename Places, typename Element>
__device__ __forceinline__ void phase_first(Span span, int64_t rows, int64_t length, Stored* values, Places places, Element element) {
    if (length > 1024) {
        return phase_sort<Falling, T>(span, rows, length, values, places, element);
    }
    const int lane = threadIdx.x % 32, warps = blockDim.x / 32;
    for (int64_t row = span.block() * warps + threadIdx.x / 32; span.step == 0 && row < rows; row += span.blocks() * warps) {
        unsigned taken = 0;
        uint64_t own = 0;
        int own_place = -1;
        const auto look = [&] {
            own_place = -1;
            for (int at = lane; at < length; at += 32) {
                const uint64_t key = Falling ? in_order<T>(element(row, at)) : ~in_order<T>(element(row, at));
                if (!(taken >> (at / 32) & 1) && (own_place < 0 || key > own)) {
                    own = key;
                    own_place = at;
                }
            }
        };
        look();
        for (int rank = 0; rank < First && rank < length; ++rank) {
            uint64_t best = own;
            int place = own_place;
#pragma unroll
            for (int step = 16; step > 0; step /= 2) {
                const uint64_t key = __shfl_xor_sync(0xffffffffu, best, step);
                const int other = __shfl_xor_sync(0xffffffffu, place, step);
                if (other >= 0 && (place < 0 || key > best || (key == best && other < place))) {
                    best = key;
                    place = other;
                }
            }
            if (place == own_place) {
                values[row * length + rank] = element(row, place);
                places[row * length + rank] = place;
                taken |= 1u << (place / 32);
                look();
            }
        }
    }
    __syncthreads();
}
#endif
