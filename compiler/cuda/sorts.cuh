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

template <bool Falling, typename T>
__device__ __forceinline__ bool stands_before(T a, int64_t place_a, T b, int64_t place_b) {
    const uint64_t one = in_order<T>(a), other = in_order<T>(b);
    return one != other ? (Falling ? one > other : one < other) : place_a < place_b;
}

// Rows in order by a bitonic network. Steps within 64 neighbours are a warp's own.
template <bool Falling, typename T, typename Stored, typename Place>
__device__ __forceinline__ void bitonic_sort(unsigned rows, unsigned length, Stored* values, Place* places) {
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
                    const Place place = places[low];
                    values[low] = values[high];
                    places[low] = places[high];
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
template <bool Falling, typename T, typename Stored, typename Element>
__device__ __forceinline__ void sort_over_grid(GridSpan span, int64_t rows, int64_t length, Stored* values, int64_t* places, Element element) {
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

// Each of `rows` in order, equal ones as they stood: by counting those before each where rows are short, else by a bitonic network.
template <bool Falling, typename T, typename Span, typename Stored, typename Element>
__device__ __forceinline__ void phase_sort(Span span, int64_t rows, int64_t length, Stored* values, int64_t* places, Element element) {
    if constexpr (!std::is_same<Span, BlockSpan>::value) {
        if (span.spread) {
            return sort_over_grid<Falling, T>(span, rows, length, values, places, element);
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
template <int First, bool Falling, typename T, typename Span, typename Stored, typename Element>
__device__ __forceinline__ void phase_first(Span span, int64_t rows, int64_t length, Stored* values, int64_t* places, Element element) {
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
