// Phases of short units, of which a warp has several; prelude.cuh brings what they call.

#if !defined(WITHOUT_PHASES)
// A team of `lanes` neighbours of a warp, at least four, has a unit. A warp's teams go through phases together; those behind the last unit idle.
struct TeamSpan {
    static constexpr bool spread = false;
    static constexpr int step = 0, split = 1;
    int lanes, lane;
    bool active;
    explicit __device__ __forceinline__ TeamSpan(int count) : lanes(count), lane(threadIdx.x % count), active(true) {}
    __device__ __forceinline__ unsigned char* memory(unsigned char* shared, unsigned char*, int64_t bytes) const { return shared + threadIdx.x / lanes * bytes; }
    __device__ __forceinline__ int64_t first() const { return (int64_t{blockIdx.x} * blockDim.x + threadIdx.x) / 32 * (32 / lanes); }
    __device__ __forceinline__ int64_t stride() const { return int64_t{gridDim.x} * (blockDim.x / lanes); }
    __device__ __forceinline__ int64_t take(int64_t turn, int64_t units) {
        const int64_t unit = turn + threadIdx.x % 32 / lanes;
        active = unit < units;
        return active ? unit : units - 1;
    }
};

template <typename Body>
__device__ __forceinline__ void phase_map(TeamSpan span, int64_t outer, int64_t inner, Body body) {
    const int count = span.active ? static_cast<int>(outer * inner) : 0, each = static_cast<int>(inner);
#pragma unroll 4
    for (int at = span.lane; at < count; at += span.lanes) {
        body(int64_t{outer == 1 ? 0 : at / each}, int64_t{outer == 1 ? at : at % each});
    }
    __syncwarp();
}
template <typename Body>
__device__ __forceinline__ void phase_scatter(TeamSpan span, int64_t outer, int64_t inner, Body body) { phase_map(span, outer, inner, body); }

template <template <typename> class How, bool Always, int Width = 1, typename T, typename Place, typename Value>
__device__ __forceinline__ void phase_join_all(TeamSpan span, int64_t outer, int64_t inner, T* to, int64_t, Place place, Value value) {
    phase_map(span, outer, inner, [=](int64_t row, int64_t at) {
        const int64_t wanted = place(row, at);
        if (Always || wanted >= 0) {
            How<T>::into(to + wanted, value(row, at));
        }
    });
}

// By a lane where many are kept whose elements lie apart, else by the team.
template <typename T, bool Along, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_fold(TeamSpan span, int64_t kept, int64_t length, T identity, Element element, Put put, Join join) {
    const bool alone = kept >= span.lanes && !(Along && length >= span.lanes);
    const int lanes = alone ? 1 : span.lanes, end = static_cast<int>(length);
    for (int64_t first = 0; first < kept; first += alone ? span.lanes : 1) {
        const int64_t at = alone ? first + span.lane : first;
        const int count = span.active && at < kept ? end : 0;
        T value = identity;
#pragma unroll 4
        for (int step = alone ? 0 : span.lane; step < count; step += lanes) {
            value = join(value, element(at, int64_t{step}));
        }
        for (int step = lanes / 2; step > 0; step /= 2) {
            value = join(value, __shfl_xor_sync(0xffffffffu, value, step));
        }
        if (span.active && at < kept && (alone || span.lane == 0)) {
            put(at, value);
        }
    }
    __syncwarp();
}

// A column after the other, four elements of it to a lane that lie `lanes` apart: they are loaded and scanned side by side.
template <typename T, bool Across = false, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_scan(TeamSpan span, int64_t columns, int64_t length, T identity, Element element, Put put, Join join) {
    constexpr int kOwn = 4;
    const int end = static_cast<int>(length), count = span.active ? end : 0;
    for (int64_t column = 0; column < columns; ++column) {
        T carried = identity;
        for (int first = 0; first < end; first += kOwn * span.lanes) {
            T own[kOwn];
#pragma unroll
            for (int part = 0; part < kOwn; ++part) {
                const int at = first + part * span.lanes + span.lane;
                own[part] = at < count ? element(column, int64_t{at}) : identity;
            }
            for (int back = 1; back < span.lanes; back *= 2) {
#pragma unroll
                for (int part = 0; part < kOwn; ++part) {
                    const T before = __shfl_up_sync(0xffffffffu, own[part], back, span.lanes);
                    own[part] = span.lane >= back ? join(before, own[part]) : own[part];
                }
            }
#pragma unroll
            for (int part = 0; part < kOwn; ++part) {
                const T all = __shfl_sync(0xffffffffu, own[part], span.lanes - 1, span.lanes);
                const int at = first + part * span.lanes + span.lane;
                if (at < count) {
                    put(column, int64_t{at}, join(carried, own[part]));
                }
                carried = join(carried, all);
            }
        }
    }
    __syncwarp();
}

// Units that a team has, and elements of one for each lane up to which a team has it: a block would wait at barriers.
constexpr int64_t kTeamUnits = 512, kTeamElements = 16;

// Teams to units where there are many short ones, else blocks.
template <typename... Parameters, typename... Arguments>
void launch_units(
    void (*teams)(Parameters...), void (*blocks)(Parameters...), int64_t units, int64_t most, int64_t unit_bytes, cudaStream_t stream, Arguments... arguments) {
    int lanes = 4;
    while (lanes < 32 && 4 * lanes < most) {
        lanes *= 2;
    }
    // Neighbours' memory begins in other banks.
    const int64_t bytes = lanes == 32 ? unit_bytes : (unit_bytes + 127) / 128 * 128 + lanes * 4;
    constexpr int kThreads = 128;
    if (units < kTeamUnits || most > kTeamElements * lanes || kThreads / lanes * bytes > 48 << 10) {
        return launch_phases<false>(blocks, units, most, unit_bytes, stream, arguments..., 0);
    }
    const int64_t wanted = (units * lanes + kThreads - 1) / kThreads;
    const unsigned grid = static_cast<unsigned>(wanted < INT64_C(1) << 30 ? wanted : INT64_C(1) << 30);
    unsigned char* const workspace = nullptr;
    launch_with_shared<false>(teams, grid, 1, kThreads, static_cast<int>(kThreads / lanes * bytes), stream, arguments..., lanes, workspace, bytes);
}
#endif
