//: maximum
// NaN wins, as in torch.
template <typename T>
DEVICE T maximum(T a, T b) {
    const T larger_one = a > b ? a : b;
    return a != a ? a : larger_one;
}
//: minimum
template <typename T>
DEVICE T minimum(T a, T b) {
    const T smaller_one = a < b ? a : b;
    return a != a ? a : smaller_one;
}
//: Pack
// Neighbouring elements, loaded and stored at once.
template <typename T, int Items>
struct alignas(sizeof(T) * Items) Pack {
    T at[Items];
};

template <int Items, typename T>
DEVICE Pack<T, Items> load_pack(const T* from) {
    return *reinterpret_cast<const Pack<T, Items>*>(from);
}

template <int Items, typename T>
DEVICE void store_pack(T* to, const Pack<T, Items>& pack) {
    *reinterpret_cast<Pack<T, Items>*>(to) = pack;
}
//: Place
// A value and where it is; of equal ones the first counts, and NaN above all.
template <typename T>
struct Place {
    T value;
    int64_t index;
};

template <typename T>
DEVICE Place<T> larger(Place<T> a, Place<T> b) {
    const bool both = a.value == b.value || (a.value != a.value && b.value != b.value);
    const bool first = both ? a.index < b.index : a.value > b.value || a.value != a.value;
    return first ? a : b;
}

template <typename T>
DEVICE Place<T> smaller(Place<T> a, Place<T> b) {
    const bool both = a.value == b.value || (a.value != a.value && b.value != b.value);
    const bool first = both ? a.index < b.index : a.value < b.value || a.value != a.value;
    return first ? a : b;
}

// The same, where a thread goes through its elements in their order.
template <typename T>
DEVICE Place<T> larger_behind(Place<T> seen, T value, int64_t index) {
    return !(value <= seen.value) && seen.value == seen.value ? Place<T>{value, index} : seen;
}

template <typename T>
DEVICE Place<T> smaller_behind(Place<T> seen, T value, int64_t index) {
    return !(value >= seen.value) && seen.value == seen.value ? Place<T>{value, index} : seen;
}
//: Moments
// Mean, sum of squared deviations from it, count: Welford's recurrence, parts joined by Chan's formula.
template <typename T>
struct Moments {
    T mean, squares, count;
};

template <typename T>
DEVICE Moments<T> with(Moments<T> seen, T value) {
    const T count = seen.count + T(1);
    const T apart = value - seen.mean;
    const T mean = seen.mean + QUOTIENT_OF_COUNT;
    return {mean, seen.squares + apart * (value - mean), count};
}

template <typename T>
DEVICE Moments<T> joined(Moments<T> a, Moments<T> b) {
    const T count = a.count + b.count;
    if (count == T(0)) {
        return a;
    }
    const T apart = b.mean - a.mean;
    const T share = b.count / count;
    return {a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share, count};
}
//: Shifted
// The maximum and the sum of exponentials shifted by it.
template <typename T>
struct Shifted {
    T highest, total;
};

template <typename T>
DEVICE Shifted<T> with(Shifted<T> seen, T value) {
    if (value > seen.highest) {
        return {value, seen.total * EXP(seen.highest - value) + T(1)};
    }
    return value == -INFINITY ? seen : Shifted<T>{seen.highest, seen.total + EXP(value - seen.highest)};
}

template <typename T>
DEVICE Shifted<T> joined(Shifted<T> a, Shifted<T> b) {
    if (a.highest < b.highest) {
        const Shifted<T> swapped = a;
        a = b;
        b = swapped;
    }
    return b.highest == -INFINITY ? a : Shifted<T>{a.highest, a.total + b.total * EXP(b.highest - a.highest)};
}
//: float16.cuda
__device__ __forceinline__ float to_float(__half value) { return __half2float(value); }
__device__ __forceinline__ void store(__half* to, float value) { *to = __float2half(value); }
__device__ __forceinline__ float round_to_float16(float value) { return __half2float(__float2half(value)); }
//: bfloat16.cuda
__device__ __forceinline__ float to_float(__nv_bfloat16 value) { return __bfloat162float(value); }
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) { *to = __float2bfloat16(value); }
__device__ __forceinline__ float round_to_bfloat16(float value) { return __bfloat162float(__float2bfloat16(value)); }
//: float16.cpu
static inline float to_float(_Float16 value) { return static_cast<float>(value); }
static inline void store(_Float16* to, float value) { *to = static_cast<_Float16>(value); }
static inline float round_to_float16(float value) { return static_cast<float>(static_cast<_Float16>(value)); }
//: bfloat16.cpu
struct bfloat16 {
    uint16_t bits;
};

static inline float to_float(bfloat16 value) {
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}

static inline void store(bfloat16* to, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    // Round to nearest even; a NaN keeps its upper half, made quiet.
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to->bits = static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded);
}

static inline float round_to_bfloat16(float value) {
    bfloat16 narrow;
    store(&narrow, value);
    return to_float(narrow);
}
//: quotient
// Two units in the last place of a step of the recurrence, which is small beside the mean: a division costs more than all the rest.
__device__ __forceinline__ float quotient(float a, float b) {
    return __fdividef(a, b);
}

__device__ __forceinline__ double quotient(double a, double b) {
    return a / b;
}
//: across
// The value of the lane whose number differs in the bit `step`.
template <typename T>
__device__ T across(T mine, int step) {
    return __shfl_xor_sync(0xffffffffu, mine, step);
}
//: across.Place
template <typename T>
__device__ Place<T> across(Place<T> mine, int step) {
    return {across(mine.value, step), across(mine.index, step)};
}
//: across.Moments
template <typename T>
__device__ Moments<T> across(Moments<T> mine, int step) {
    return {across(mine.mean, step), across(mine.squares, step), across(mine.count, step)};
}
//: across.Shifted
template <typename T>
__device__ Shifted<T> across(Shifted<T> mine, int step) {
    return {across(mine.highest, step), across(mine.total, step)};
}
//: warp_fold
template <typename T, typename Join>
__device__ T warp_fold(T value, Join join) {
    for (int step = 16; step > 0; step /= 2) {
        value = join(value, across(value, step));
    }
    return value;
}
//: block_fold
// Every thread of the block gets the fold of all their values. The block is of whole warps.
template <typename T, typename Join>
__device__ T block_fold(T value, T identity, Join join) {
    __shared__ T partial[32];
    const int lane = threadIdx.x % 32;
    value = warp_fold(value, join);
    __syncthreads();  // the fold before this one has been read
    if (lane == 0) {
        partial[threadIdx.x / 32] = value;
    }
    __syncthreads();
    return warp_fold(lane < blockDim.x / 32 ? partial[lane] : identity, join);
}
//: column_fold
// Every thread of a column of the block gets the fold of their values.
template <typename T, typename Join>
__device__ T column_fold(T value, Join join) {
    __shared__ T partial[256];
    const int mine = threadIdx.y * blockDim.x + threadIdx.x;
    __syncthreads();  // the fold before this one has been read
    partial[mine] = value;
    __syncthreads();
    value = partial[threadIdx.x];
    for (int other = 1; other < blockDim.y; ++other) {
        value = join(value, partial[other * blockDim.x + threadIdx.x]);
    }
    return value;
}
//: words
// A pack as it arrives. Its bytes are taken apart where they are used: whoever does that earlier waits for them.
template <int Bytes> struct WordOf;
template <> struct WordOf<1> { using type = unsigned char; };
template <> struct WordOf<2> { using type = unsigned short; };
template <> struct WordOf<4> { using type = unsigned; };
template <> struct WordOf<8> { using type = uint2; };
template <> struct WordOf<16> { using type = uint4; };
template <typename Packed>
using Word = typename WordOf<sizeof(Packed)>::type;

template <typename Packed, typename T>
__device__ __forceinline__ Word<Packed> load_word(const T* from) {
    return *reinterpret_cast<const Word<Packed>*>(from);
}

template <typename Packed>
__device__ __forceinline__ Packed as_pack(Word<Packed> word) {
    Packed found;
    __builtin_memcpy(&found, &word, sizeof(found));
    return found;
}
//: block_scan
// Each value becomes the fold of those before it, all threads' first values before their second ones; `total` that of the whole block.
template <int Parts, typename T, typename Join>
__device__ __forceinline__ void block_scan(T (&value)[Parts], T identity, T* total, Join join) {
    __shared__ T partial[32 * Parts];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    #pragma unroll
    for (int step = 1; step < 32; step *= 2) {
        #pragma unroll
        for (int part = 0; part < Parts; ++part) {
            const T before = __shfl_up_sync(0xffffffffu, value[part], step);
            value[part] = lane >= step ? join(before, value[part]) : value[part];
        }
    }
    __syncthreads();  // the scan before this one has been read
    if (lane == 31) {
        #pragma unroll
        for (int part = 0; part < Parts; ++part) {
            partial[part * warps + warp] = value[part];
        }
    }
    __syncthreads();
    T others[Parts], running = identity;
    #pragma unroll
    for (int part = 0; part < Parts; ++part) {
        others[part] = identity;
    }
    for (int start = 0; start < warps * Parts; start += 32) {  // once, with 32 warps' parts or fewer
        T here = start + lane < warps * Parts ? partial[start + lane] : identity;
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {
            const T before = __shfl_up_sync(0xffffffffu, here, step);
            here = lane >= step ? join(before, here) : here;
        }
        #pragma unroll
        for (int part = 0; part < Parts; ++part) {
            const int place = part * warps + warp - 1 - start;
            const T before = __shfl_sync(0xffffffffu, here, place & 31);
            others[part] = place >= 0 && place < 32 ? join(running, before) : others[part];
        }
        running = join(running, __shfl_sync(0xffffffffu, here, 31));
    }
    *total = running;
    #pragma unroll
    for (int part = 0; part < Parts; ++part) {
        const T left = __shfl_up_sync(0xffffffffu, value[part], 1);
        value[part] = lane > 0 ? join(others[part], left) : others[part];
    }
}
//: round_to_tf32_even
// To the 11 significant bits of TF32, to the nearest, of two as near to the even one.
__device__ __forceinline__ float round_to_tf32_even(float value) {
    const uint32_t bits = __float_as_uint(value);
    return (bits & 0x7f800000u) == 0x7f800000u ? value : __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}
//: architectures
#ifdef __CUDA_ARCH_LIST__
constexpr int kArchitectures[] = {__CUDA_ARCH_LIST__};
#else
constexpr int kArchitectures[] = {900};
#endif
//: maximum.cpu
#pragma omp declare reduction(maximum : float, double, int32_t, int64_t : omp_out = maximum(omp_out, omp_in)) initializer(omp_priv = omp_orig)
//: minimum.cpu
#pragma omp declare reduction(minimum : float, double, int32_t, int64_t : omp_out = minimum(omp_out, omp_in)) initializer(omp_priv = omp_orig)
//: Place.cpu

// The first of a block's elements, from place `first` on, that is `best` or no number; what was seen where that is no number.
template <typename T>
DEVICE Place<T> place_of(Place<T> seen, T best, const T* values, int64_t count, int64_t first) {
    for (int64_t at = 0; at < count && seen.value == seen.value; ++at) {
        if (values[at] == best || values[at] != values[at]) {
            return {values[at], first + at};
        }
    }
    return seen;
}

// The same for a block of elements from place `first` on: where none is larger than what was seen, no place is looked at.
template <typename T>
DEVICE Place<T> larger_of(Place<T> seen, const T* values, int64_t count, int64_t first) {
    T most = values[0];
#pragma omp simd reduction(maximum : most)
    for (int64_t at = 0; at < count; ++at) {
        most = maximum(most, values[at]);
    }
    return most <= seen.value ? seen : place_of(seen, most, values, count, first);
}

template <typename T>
DEVICE Place<T> smaller_of(Place<T> seen, const T* values, int64_t count, int64_t first) {
    T least = values[0];
#pragma omp simd reduction(minimum : least)
    for (int64_t at = 0; at < count; ++at) {
        least = minimum(least, values[at]);
    }
    return least >= seen.value ? seen : place_of(seen, least, values, count, first);
}
//: Moments.cpu

// Of a block: its mean, squares from there, and by how much the mean was rounded.
template <typename T>
DEVICE Moments<double> moments_of(const T* values, int64_t count) {
    const auto add = [](T a, T b) { return a + b; };
    const T mean = fold_in_lanes<T>(count, T(0), [&](int64_t at) { return values[at]; }, add) / static_cast<T>(count);
    const auto square = [&](int64_t at) { return (values[at] - mean) * (values[at] - mean); };
    const T squares = fold_in_lanes<T>(count, T(0), square, add), apart = fold_in_lanes<T>(count, T(0), [&](int64_t at) { return values[at] - mean; }, add);
    const double number = static_cast<double>(count), rest = apart / number;
    return {mean + rest, squares - rest * rest * number, number};
}
//: Shifted.cpu

// Of a block; a NaN stays one.
template <typename T>
DEVICE Shifted<T> shifted_of(const T* values, int64_t count) {
    T highest = -INFINITY, total = T(0);
#pragma omp simd reduction(max : highest)
    for (int64_t at = 0; at < count; ++at) {
        highest = values[at] > highest ? values[at] : highest;
    }
    const T from = highest - highest == T(0) ? highest : T(0);
#pragma omp simd reduction(+ : total)
    for (int64_t at = 0; at < count; ++at) {
        total += exponential(values[at] - from);
    }
    return {total == total ? highest : T(0), total};
}
//: fold_in_lanes
// What `value` says of 0 to count - 1, in 32 lanes: four vectors or more do not wait for each other.
template <typename T, typename Value, typename Join>
static inline T fold_in_lanes(int64_t count, T start, Value value, Join join) {
    constexpr int kLanes = 32;
    T lanes[kLanes];
    for (auto& one : lanes) {
        one = start;
    }
    int64_t at = 0;
    for (; at + kLanes <= count; at += kLanes) {
#pragma omp simd
        for (int lane = 0; lane < kLanes; ++lane) {
            lanes[lane] = join(lanes[lane], value(at + lane));
        }
    }
    const int left = static_cast<int>(count - at);
#pragma omp simd
    for (int lane = 0; lane < left; ++lane) {
        lanes[lane] = join(lanes[lane], value(at + lane));
    }
    for (int half = kLanes / 2; half > 0; half /= 2) {
#pragma omp simd
        for (int lane = 0; lane < half; ++lane) {
            lanes[lane] = join(lanes[lane], lanes[lane + half]);
        }
    }
    return lanes[0];
}
//: in_strips
// body(first, count) over [begin, end): sixteen at a time, a number known to the compiler, then what is left.
template <typename Body>
static inline void in_strips(int64_t begin, int64_t end, Body body) {
    for (; end - begin >= 16; begin += 16) {
        body(begin, std::integral_constant<int, 16>{});
    }
    if (begin < end) {
        body(begin, static_cast<int>(end - begin));
    }
}
