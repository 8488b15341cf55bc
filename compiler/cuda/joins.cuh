// Sums and extremes that phases join at computed places; phases.cuh brings what they call.

#if !defined(WITHOUT_PHASES)
// How what goes to a place joins what is there: `none` is nothing beside anything, `into` joins in memory in one step.
template <typename T>
struct Sums {
    static __device__ __forceinline__ T none() { return T(0); }
    static __device__ __forceinline__ T join(T a, T b) { return a + b; }
    static __device__ __forceinline__ void into(T* to, T value) { phase_add(to, value); }
};
template <typename T>
struct Highest {
    static __device__ __forceinline__ T none() { return least_of<T>(); }
    static __device__ __forceinline__ T join(T a, T b) { return maximum(a, b); }
    static __device__ __forceinline__ void into(T* to, T value) { phase_raise(to, value); }
};
template <typename T>
struct Lowest {
    static __device__ __forceinline__ T none() { return static_cast<T>(-(least_of<T>() + T(1))); }
    static __device__ __forceinline__ T join(T a, T b) { return minimum(a, b); }
    static __device__ __forceinline__ void into(T* to, T value) { phase_lower(to, value); }
};

// Rows of a grid that go to one place one after the other, as those of a segment do, are joined first, eight loaded at once: 16 rows to a
// thread, or more where threads remain many. Four neighbours to a thread, which sm_90 adds by one operation, were 2 % faster for rows of 128
// and 16 % slower for rows of eight (H200).
template <template <typename> class How, bool Always, typename Span, typename T, typename Place, typename Value>
__device__ __forceinline__ void join_runs(Span span, int64_t outer, int64_t inner, T* to, Place place, Value value) {
    constexpr int kAhead = 8;
    const int64_t each = outer * inner / (INT64_C(1) << 19) / kAhead * kAhead, run = each < 16 ? 16 : each < 64 ? each : 64;
    for_pairs<1>(span, (outer + run - 1) / run, inner, [=](int64_t chunk, int64_t at) {
        int64_t current = -1;
        T joined = How<T>::none();
        const int64_t end = (chunk + 1) * run < outer ? (chunk + 1) * run : outer;
        for (int64_t first = chunk * run; first < end; first += kAhead) {
            int64_t wanted[kAhead];
            T values[kAhead];
            if constexpr (Always) {
#pragma unroll
                for (int ahead = 0; ahead < kAhead; ++ahead) {
                    wanted[ahead] = place(first + ahead < end ? first + ahead : end - 1, at);
                }
                load_ahead(values, end - first, How<T>::none(), value, [=](int ahead) { return PairPlace{first + ahead, at}; });
            } else {
#pragma unroll
                for (int ahead = 0; ahead < kAhead; ++ahead) {
                    wanted[ahead] = first + ahead < end ? place(first + ahead, at) : current;
                    values[ahead] = first + ahead < end && wanted[ahead] >= 0 ? value(first + ahead, at) : How<T>::none();
                }
            }
#pragma unroll
            for (int ahead = 0; ahead < kAhead; ++ahead) {
                if (wanted[ahead] != current) {
                    if (current >= 0) {
                        How<T>::into(to + current, joined);
                    }
                    current = wanted[ahead];
                    joined = How<T>::none();
                }
                joined = How<T>::join(joined, values[ahead]);
            }
        }
        if (current >= 0) {
            How<T>::into(to + current, joined);
        }
    });
}

// Every lane's value into its place, none where that is below zero; lanes side by side that name one place are joined first if there are many.
// Whether there are.
template <template <typename> class How, typename T>
__device__ __forceinline__ bool join_lanes(T* to, int64_t place, T value) {
    const int lane = threadIdx.x % 32;
    const int64_t left = __shfl_up_sync(0xffffffffu, place, 1);
    const bool is_first = lane == 0 || left != place;
    const unsigned firsts = __ballot_sync(0xffffffffu, is_first), behind = firsts & ~((2u << lane) - 1);
    const bool are_many = __popc(firsts) <= 24;
    if (are_many) {
        const int end = behind != 0 ? __ffs(static_cast<int>(behind)) - 1 : 32;
#pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const T other = __shfl_down_sync(0xffffffffu, value, step);
            value = lane + step < end ? How<T>::join(value, other) : value;
        }
        place = is_first ? place : -1;
    }
    if (place >= 0) {
        How<T>::into(to + place, value);
    }
    return are_many;
}

// A thread's four elements lie a quarter of all apart: its loads are in flight together, and beside its neighbours'. `Alone`: lanes do not ask
// their neighbours, which is dear beside integers that one instruction adds in shared memory; other lanes do, of the last three if of the first it was of use.
template <template <typename> class How, bool Always, bool Alone, typename Span, typename T, typename Place, typename Value>
__device__ __forceinline__ void join_quarters(Span span, int64_t outer, int64_t inner, T* to, Place place, Value value) {
    const auto ask = [=](int64_t row, int64_t at, int64_t& wanted, T& own) {
        const bool is_one = row < outer && at < inner;
        wanted = is_one ? place(row, at) : -1;
        own = (Always ? is_one : wanted >= 0) ? value(row, at) : How<T>::none();
    };
    int64_t wanted[4];
    T values[4];
    if (outer == 1) {
        const int64_t quarter = (inner + 3) / 4;
        for (int64_t first = span.block() * blockDim.x; first < quarter; first += span.blocks() * blockDim.x) {
            const int64_t at = first + threadIdx.x;
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                ask(at < quarter ? 0 : outer, at + part * quarter, wanted[part], values[part]);
            }
            bool asks = !Alone;
#pragma unroll
            for (int part = 0; part < 4; ++part) {
                if (asks) {
                    asks = join_lanes<How>(to, wanted[part], values[part]);
                } else if (wanted[part] >= 0) {
                    How<T>::into(to + wanted[part], values[part]);
                }
            }
        }
        __syncthreads();
        return;
    }
    const int64_t quarter = (outer + 3) / 4;
    for_pairs<1>(span, quarter, inner, [=](int64_t row, int64_t at) mutable {
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            ask(row + part * quarter, at, wanted[part], values[part]);
        }
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            if (wanted[part] >= 0) {
                How<T>::into(to + wanted[part], values[part]);
            }
        }
    });
}

// Joins value(outer, inner) to the element, of `places`, that place(outer, inner) names, none below zero.
template <template <typename> class How, bool Always, typename Span, typename T, typename Place, typename Value>
__device__ __forceinline__ void phase_join_all(Span span, int64_t outer, int64_t inner, T* to, int64_t places, Place place, Value value) {
    if constexpr (!std::is_same<Span, BlockSpan>::value) {
        if (span.spread && are_few(places, outer * inner)) {
            T* const own = reinterpret_cast<T*>(span.shared);
            for (int at = threadIdx.x; at < places; at += blockDim.x) {
                own[at] = How<T>::none();
            }
            __syncthreads();
            join_quarters<How, Always, std::is_integral<T>::value>(span, outer, inner, own, place, value);
            for (int at = threadIdx.x; at < places; at += blockDim.x) {
                if (own[at] != How<T>::none()) {
                    How<T>::into(to + at, own[at]);
                }
            }
            return;
        }
        if (span.spread && inner > 1 && outer * inner >= INT64_C(1) << 19) {
            return join_runs<How, Always>(span, outer, inner, to, place, value);
        }
    }
    if (std::is_integral<T>::value && is_shared(to)) {
        return join_quarters<How, Always, true>(span, outer, inner, to, place, value);
    }
    join_quarters<How, Always, false>(span, outer, inner, to, place, value);
}
#endif
