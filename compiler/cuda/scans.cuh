// Scans of phases; prelude.cuh brings what they call.

#if !defined(WITHOUT_PHASES)
// log(exp(a) + exp(b)); of infinities and NaN the larger.
template <typename T>
__device__ __forceinline__ T log_add(T a, T b) {
    const T most = maximum(a, b);
    return most - most == T(0) ? most + log1p(exp(minimum(a, b) - most)) : most;
}

struct LogAdd {
    template <typename T>
    __device__ __forceinline__ T operator()(T a, T b) const { return log_add(a, b); }
};

// own[at] becomes join(ahead, own[0], ..., own[at]).
template <int Count, typename T, typename Join>
__device__ __forceinline__ void scan_neighbours(T (&own)[Count], T ahead, Join join) {
#pragma unroll
    for (int at = 0; at < Count; ++at) {
        own[at] = ahead = join(ahead, own[at]);
    }
}
// By one exponential and one logarithm each, where none is so far below a later one that it would be nothing beside it.
template <int Count, typename T>
__device__ __forceinline__ void scan_neighbours(T (&own)[Count], T ahead, LogAdd join) {
    const T least = maximum(ahead, own[0]);
    T most = least;
#pragma unroll
    for (int at = 1; at < Count; ++at) {
        most = maximum(most, own[at]);
    }
    if (!(most - least <= T(60))) {
        return scan_neighbours(own, ahead, [](T a, T b) { return log_add(a, b); });
    }
    T sum = exp(ahead - most);
#pragma unroll
    for (int at = 0; at < Count; ++at) {
        sum += exp(own[at] - most);
        own[at] = most + log(sum);
    }
}
template <int Count, typename T, typename Join>
__device__ __forceinline__ T join_neighbours(const T (&own)[Count], Join join) {
    T all = own[0];
#pragma unroll
    for (int at = 1; at < Count; ++at) {
        all = join(all, own[at]);
    }
    return all;
}
template <int Count, typename T>
__device__ __forceinline__ T join_neighbours(const T (&own)[Count], LogAdd) {
    T most = own[0], sum = T(0);
#pragma unroll
    for (int at = 1; at < Count; ++at) {
        most = maximum(most, own[at]);
    }
#pragma unroll
    for (int at = 0; at < Count; ++at) {
        sum += exp(own[at] - most);
    }
    return most - most == T(0) ? most + log(sum) : most;
}

// `value` joined over a warp's lanes up to this one.
template <typename T, typename Join>
__device__ __forceinline__ T scan_lanes(T value, int lane, Join join) {
#pragma unroll
    for (int back = 1; back < 32; back *= 2) {
        const T before = __shfl_up_sync(0xffffffffu, value, back);
        value = lane >= back ? join(before, value) : value;
    }
    return value;
}

template <typename T>
__device__ __forceinline__ T scan_lanes(T value, int lane, LogAdd) {
    T most = value;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        most = maximum(most, __shfl_xor_sync(0xffffffffu, most, step));
    }
    if (!(most - __shfl_sync(0xffffffffu, value, 0) <= T(60))) {
        return scan_lanes(value, lane, [](T a, T b) { return log_add(a, b); });
    }
    return most + log(scan_lanes(exp(value - most), lane, [](T a, T b) { return a + b; }));
}

// An element in two steps: what it is made of, and what is made of that.
template <typename Fetch, typename Value>
struct Fetched {
    Fetch fetch;
    Value value;

    __device__ __forceinline__ auto operator()(int64_t outer, int64_t at) const { return value(outer, at, fetch(outer, at)); }
};
template <typename Fetch, typename Value>
__device__ __forceinline__ Fetched<Fetch, Value> fetched(Fetch fetch, Value value) { return {fetch, value}; }

// own[ahead] becomes the element at place(ahead), of which there are `count`, one at least; of those beyond, `none`.
template <int Count, typename T, typename Element, typename Place>
__device__ __forceinline__ void load_ahead(T (&own)[Count], int64_t count, T none, const Element& element, Place place) {
#pragma unroll
    for (int ahead = 0; ahead < Count; ++ahead) {
        own[ahead] = ahead < count ? element(place(ahead).outer, place(ahead).at) : none;
    }
}
template <int Count, typename T, typename Fetch, typename Value, typename Place>
__device__ __forceinline__ void load_ahead(T (&own)[Count], int64_t count, T none, const Fetched<Fetch, Value>& element, Place place) {
    decltype(element.fetch(0, 0)) loads[Count];
#pragma unroll
    for (int ahead = 0; ahead < Count; ++ahead) {
        const auto known = place(ahead < count ? ahead : static_cast<int>(count) - 1);  // no branch keeps a load from the others
        loads[ahead] = element.fetch(known.outer, known.at);
    }
#pragma unroll
    for (int ahead = 0; ahead < Count; ++ahead) {
        own[ahead] = ahead < count ? element.value(place(ahead).outer, place(ahead).at, loads[ahead]) : none;
    }
}
struct PairPlace {
    int64_t outer, at;
};

// A row after the other by the whole block, a few neighbours to a thread; a warp's lie together and are loaded and stored side by side,
// changing hands in between. What is before a warp's and before a block's is joined on.
template <typename T, typename Span, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_scan_rows(Span span, int64_t rows, int64_t length, T* partial, T identity, Element element, Put put, Join join) {
    constexpr int kOwn = sizeof(T) <= 4 ? 8 : 3;
    static_assert(1024 * (kOwn + 1) * sizeof(T) <= kScanBytes, "its elements have room");
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    T* const held = reinterpret_cast<T*>(scan_memory()) + warp * 32 * (kOwn + 1);
    for (int64_t row = span.block(); row < rows; row += span.blocks()) {
        T carried = identity;
        for (int64_t first = 0; first < length; first += blockDim.x * kOwn) {
            const int64_t begin = first + warp * 32 * kOwn + lane;
            T own[kOwn];
#pragma unroll
            for (int at = 0; at < kOwn; ++at) {
                own[at] = begin + 32 * at < length ? element(row, begin + 32 * at) : identity;
            }
#pragma unroll
            for (int at = 0; at < kOwn; ++at) {
                held[32 * at + lane + (32 * at + lane) / kOwn] = own[at];
            }
            __syncwarp();
#pragma unroll
            for (int at = 0; at < kOwn; ++at) {
                own[at] = held[lane * (kOwn + 1) + at];
            }
            const T all = scan_lanes(join_neighbours<kOwn>(own, join), lane, join);
            if (lane == 31) {
                partial[warp] = all;
            }
            __syncthreads();
            const T upto = scan_lanes(lane < warps ? partial[lane] : identity, lane, join);
            const T before_warp = __shfl_sync(0xffffffffu, upto, warp > 0 ? warp - 1 : 0), before = __shfl_up_sync(0xffffffffu, all, 1);
            T ahead = warp > 0 ? join(carried, before_warp) : carried;
            ahead = lane > 0 ? join(ahead, before) : ahead;
            carried = join(carried, __shfl_sync(0xffffffffu, upto, 31));
            scan_neighbours<kOwn>(own, ahead, join);
#pragma unroll
            for (int at = 0; at < kOwn; ++at) {
                held[lane * (kOwn + 1) + at] = own[at];
            }
            __syncwarp();
#pragma unroll
            for (int at = 0; at < kOwn; ++at) {
                if (begin + 32 * at < length) {
                    put(row, begin + 32 * at, held[32 * at + lane + (32 * at + lane) / kOwn]);
                }
            }
            __syncthreads();
        }
    }
}

// Parts of columns that lie beside each other, a thread to each: as many as each has steps, if the device has threads for them. 1: none.
__host__ __device__ __forceinline__ int64_t scan_parts(int64_t columns, int64_t length) {
    int64_t parts = 1;
    while (columns >= 16 && parts * parts < length && parts * columns < 65536) {
        parts *= 2;
    }
    return parts < 8 ? 1 : parts;
}

// Step 0: what each part comes to; step 1: a part's results, what is before it joined on.
template <typename T, typename Element, typename Put, typename Join>
__device__ __forceinline__ void scan_over_grid(GridSpan span, int64_t columns, int64_t length, T identity, Element element, Put put, Join join) {
    constexpr int kAhead = 16;
    T* const partial = reinterpret_cast<T*>(span.scratch);
    const int64_t parts = scan_parts(columns, length), each = (length + parts - 1) / parts, warps = blockDim.x / 32;
    for (int64_t warp = threadIdx.x / 32 * int64_t{gridDim.x} + blockIdx.x; warp * 32 < parts * columns; warp += warps * gridDim.x) {
        const int64_t own = warp * 32 + threadIdx.x % 32, part = own / columns, column = own % columns;
        const int64_t begin = part * each, end = begin + each < length ? begin + each : length;
        if (own >= parts * columns) {
            continue;
        }
        T value = identity, ahead[kAhead];
        for (int64_t first = 0; span.step == 1 && first < part; first += kAhead) {
#pragma unroll
            for (int at = 0; at < kAhead; ++at) {
                ahead[at] = first + at < part ? partial[(first + at) * columns + column] : identity;
            }
            value = join(value, join_neighbours<kAhead>(ahead, join));
        }
        for (int64_t step = begin; step < end; step += kAhead) {
            load_ahead(ahead, end - step, identity, element, [=](int at) { return PairPlace{column, step + at}; });
            if (span.step == 0) {
                value = join(value, join_neighbours<kAhead>(ahead, join));
                continue;
            }
            scan_neighbours<kAhead>(ahead, value, join);
            value = ahead[kAhead - 1];
#pragma unroll
            for (int at = 0; at < kAhead; ++at) {
                if (step + at < end) {
                    put(column, step + at, ahead[at]);
                }
            }
        }
        if (span.step == 0) {
            partial[own] = value;
        }
    }
}

// put(column, step, the reduction up to that step), of columns `Across` that lie side by side: a column by as many threads as there are for it, each of which takes a part of it twice.
template <typename T, bool Across = false, typename Span, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_scan(Span span, int64_t columns, int64_t length, T identity, Element element, Put put, Join join) {
    if constexpr (Across && std::is_same<Span, GridSpan>::value) {
        if (span.spread && scan_parts(columns, length) > 1) {
            return scan_over_grid(span, columns, length, identity, element, put, join);
        }
    }
    constexpr int kAhead = sizeof(T) <= 4 ? 16 : 8;  // loads of a thread on their way
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
        T value = identity, own[kAhead];
        const int64_t known = column < columns ? column : columns - 1;  // what others load is not used
        const auto load = [&](int64_t step) {
            load_ahead(own, end - step, identity, element, [=](int ahead) { return PairPlace{known, step + ahead}; });
        };
        if (parts > 1) {
            for (int64_t step = begin; step < end; step += kAhead) {
                load(step);
                value = join(value, join_neighbours<kAhead>(own, join));
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
        for (int64_t step = begin; step < end; step += kAhead) {
            if (parts == 1 || each > kAhead) {  // else they are still there
                load(step);
            }
            scan_neighbours<kAhead>(own, value, join);
            value = own[kAhead - 1];
#pragma unroll
            for (int ahead = 0; ahead < kAhead; ++ahead) {
                if (is_one && step + ahead < end) {
                    put(column, step + ahead, own[ahead]);
                }
            }
        }
        __syncthreads();
    }
}
#endif
