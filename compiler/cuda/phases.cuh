// Phases of a block: every thread comes here, and none leaves before all are done.

#if !defined(WITHOUT_PHASES)
#include <initializer_list>

constexpr int kPhaseBytes = 200 << 10;

// body(outer, inner) for every pair.
template <typename Body>
__device__ __forceinline__ void phase_map(int64_t outer, int64_t inner, Body body) {
    const int64_t count = outer * inner;
    if (outer == 1) {
        for (int64_t at = threadIdx.x; at < count; at += blockDim.x) {
            body(int64_t{0}, at);
        }
    } else if (count < INT64_C(1) << 31) {
        for (unsigned at = threadIdx.x; at < count; at += blockDim.x) {
            body(int64_t{at / static_cast<unsigned>(inner)}, int64_t{at % static_cast<unsigned>(inner)});
        }
    } else {
        for (int64_t at = threadIdx.x; at < count; at += blockDim.x) {
            body(at / inner, at % inner);
        }
    }
    __syncthreads();
}
template <typename Body>
__device__ __forceinline__ void phase_scatter(int64_t outer, int64_t inner, Body body) { phase_map(outer, inner, body); }

template <typename T>
__device__ __forceinline__ void phase_add(T* to, T value) { atomicAdd(to, value); }
template <>
__device__ __forceinline__ void phase_add<int64_t>(int64_t* to, int64_t value) {
    atomicAdd(reinterpret_cast<unsigned long long*>(to), static_cast<unsigned long long>(value));
}

// put(kept, the reduction of element(kept, step)): by the whole block where one is kept, by a warp where that is worth it, else by a thread.
template <typename T, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_fold(int64_t kept, int64_t length, T identity, Element element, Put put, Join join) {
    __shared__ T partial[32];
    const int lanes = kept == 1 ? blockDim.x : length >= 32 && kept <= 4 * blockDim.x ? 32 : 1;
    const int teams = blockDim.x / lanes, lane = threadIdx.x % lanes;
    for (int64_t first = 0; first < kept; first += teams) {
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

// put(column, step, the reduction up to that step): a column by as many threads as there are for it, each of which takes a part of it twice.
template <typename T, typename Element, typename Put, typename Join>
__device__ __forceinline__ void phase_scan(int64_t columns, int64_t length, T identity, Element element, Put put, Join join) {
    __shared__ T partial[1024];
    const int threads = blockDim.x, parts = columns >= threads ? 1 : threads / static_cast<int>(columns);
    const int across = parts == 1 ? threads : static_cast<int>(columns), part = threadIdx.x / across;
    const int64_t each = (length + parts - 1) / parts, begin = part * each, end = begin + each < length ? begin + each : length;
    for (int64_t first = 0; first < columns; first += across) {
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

// Bits that are in the order of the values; what is no number is the largest, as in torch.
template <typename T>
__device__ __forceinline__ uint64_t in_order(T value) { return static_cast<uint64_t>(static_cast<int64_t>(value)) ^ UINT64_C(1) << 63; }
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

// Each of `rows` in order, equal ones as they stood: by counting those before each where rows are short, else by a bitonic network.
template <bool Falling, typename T, typename Stored, typename Element>
__device__ __forceinline__ void phase_sort(int64_t rows, int64_t length, Stored* values, int64_t* places, Element element) {
    const int64_t count = rows * length;
    for (int64_t at = threadIdx.x; at < count; at += blockDim.x) {
        values[at] = element(at / length, at % length);
        places[at] = at % length;
    }
    __syncthreads();
    if (length <= 256 && length <= static_cast<int64_t>(blockDim.x)) {
        const int64_t each = blockDim.x / length * length;
        for (int64_t first = 0; first < count; first += each) {
            const int64_t at = first + threadIdx.x, row = at / length * length;
            const bool is_one = threadIdx.x < each && at < count;
            int64_t rank = 0;
            Stored own = Stored();
            if (is_one) {
                own = values[at];
                for (int64_t other = 0; other < length; ++other) {
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
        return;
    }
    int64_t whole = 2;
    while (whole < length) {
        whole *= 2;
    }
    const auto compare = [&](int64_t low, int64_t high, int64_t row) {
        if (high < length && stands_before<Falling, T>(values[row + high], places[row + high], values[row + low], places[row + low])) {
            const Stored value = values[row + low];
            const int64_t place = places[row + low];
            values[row + low] = values[row + high];
            places[row + low] = places[row + high];
            values[row + high] = value;
            places[row + high] = place;
        }
    };
    for (int64_t size = 2; size <= whole; size *= 2) {
        for (int64_t step = size / 2; step > 0; step /= 2) {
            for (int64_t pair = threadIdx.x; pair < rows * (whole / 2); pair += blockDim.x) {
                const int64_t row = pair / (whole / 2) * length, at = pair % (whole / 2), within = at % step;
                const int64_t low = (at - within) * 2 + within;
                compare(low, step == size / 2 ? (at - within) * 2 + 2 * step - 1 - within : low + step, row);
            }
            __syncthreads();
        }
    }
}

// put(row, the value that would stand at `rank` of a row in order): eight bits at a time, the highest first, by counting.
template <bool Falling, typename T, typename Rank, typename Element, typename Put>
__device__ __forceinline__ void phase_nth(int64_t rows, int64_t length, Rank rank, Element element, Put put) {
    __shared__ int counts[256];
    __shared__ int64_t left;
    __shared__ uint64_t known;
    const auto key_of = [&](int64_t row, int64_t at) { return Falling ? ~in_order<T>(element(row, at)) : in_order<T>(element(row, at)); };
    for (int64_t row = 0; row < rows; ++row) {
        if (threadIdx.x == 0) {
            const int64_t wanted = rank(row);
            left = wanted < 0 ? 0 : wanted < length ? wanted : length - 1;
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
    if (unit_bytes <= kPhaseBytes) {
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kPhaseBytes);
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
#endif
