// What would stand somewhere in an ordered row, without the order; prelude.cuh brings what they call.

#if !defined(WITHOUT_PHASES)
template <typename T>
__device__ __forceinline__ T from_order(uint64_t key) { return static_cast<T>(static_cast<int64_t>(key ^ UINT64_C(1) << 63)); }
template <>
__device__ __forceinline__ int32_t from_order<int32_t>(uint64_t key) { return static_cast<int32_t>(static_cast<uint32_t>(key) ^ 0x80000000u); }
template <>
__device__ __forceinline__ float from_order<float>(uint64_t key) {
    const unsigned bits = static_cast<unsigned>(key);
    return __uint_as_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
}

constexpr int kDigits = 256, kSeekCopies = 16, kSeekBins = kDigits * kSeekCopies;

// body(value) for every element of a row, four of a thread's loaded at once.
template <typename T, typename Span, typename Element, typename Body>
__device__ __forceinline__ void for_row(Span span, int64_t row, int64_t length, Element element, Body body) {
    const int64_t each = span.blocks() * blockDim.x;
    int64_t at = span.block() * blockDim.x + threadIdx.x;
    for (; at + 3 * each < length; at += 4 * each) {
        const T ahead[4] = {element(row, at), element(row, at + each), element(row, at + 2 * each), element(row, at + 3 * each)};
#pragma unroll
        for (int part = 0; part < 4; ++part) {
            body(ahead[part]);
        }
    }
    for (; at < length; at += each) {
        body(element(row, at));
    }
}

// Counts of a row's elements.
struct Counted {
    static constexpr int words = 1;
    static __device__ __forceinline__ void add(int* bin, uint64_t) { atomicAdd(bin, 1); }
    static __device__ __forceinline__ int64_t of(const int* bin) { return bin[0]; }
    static __device__ __forceinline__ double sum(int64_t all, int) { return static_cast<double>(all); }
};

// Sums of a row's floats, exact: with the first eight bits of a key the exponent is known but for its last bit, so the rest is an integer, of
// which two words hold thirteen bits each: they are added without waiting for what was there. A zero is as much as 2^-151, so that it is there;
// what is no number counts as 2^129.
struct Summed {
    static constexpr int words = 2;
    static __device__ __forceinline__ void add(int* bin, uint64_t key) {
        const unsigned bits = static_cast<unsigned>(key), magnitude = (bits >> 31 ? bits : ~bits) & 0x7fffffffu, exponent = magnitude >> 23;
        const unsigned whole = (magnitude & 0x7fffffu) | (exponent != 0 ? 0x800000u : 0u);
        const unsigned value = magnitude == 0 ? 1u : whole << ((exponent == 0 || exponent % 2 != 0) + 1);
        const int low = static_cast<int>(value & 8191u), high = static_cast<int>(value >> 13);
        atomicAdd(bin, bits >> 31 ? low : -low);
        atomicAdd(bin + kSeekBins, bits >> 31 ? high : -high);
    }
    static __device__ __forceinline__ int64_t of(const int* bin) { return int64_t{bin[kSeekBins]} * 8192 + bin[0]; }
    static __device__ __forceinline__ double sum(int64_t all, int digit) {
        const int64_t power = static_cast<int64_t>(2 * (digit >= 128 ? digit - 128 : 127 - digit) - 151 + 1023) << 52;
        double by;
        memcpy(&by, &power, sizeof(by));
        return static_cast<double>(all) * by;
    }
};

// The key of the first element in order at which `holds` of what it and those before it come to, found by eight bits at a time, the
// highest first: what goes by a digit is added up in memory of the block's, to one of some copies, as neighbours are often alike.
// Whether there is one; every thread knows.
template <bool Falling, typename T, typename How, typename Span, typename Element, typename Holds>
__device__ __forceinline__ bool seek_by_digits(Span span, int64_t row, int64_t length, Element element, Holds holds, uint64_t& known) {
    constexpr int kTop = sizeof(T) == 4 ? 24 : 56;
    constexpr int64_t kMost = INT64_C(1) << 21;  // elements of a block that its words have room for
    static_assert(2 * kSeekBins * 4 + 2 * kDigits * 8 <= kScanBytes, "they have room");
    __shared__ int found;
    __shared__ double ahead;
    int* const bins = reinterpret_cast<int*>(scan_memory());
    int64_t* const totals = reinterpret_cast<int64_t*>(scan_memory()) + kSeekBins;
    const int lane = threadIdx.x % 32, copies = length < 4096 ? 1 : kSeekCopies, own = lane % copies;
    double before = 0;
    known = 0;
    for (int shift = kTop; shift >= 0; shift -= 8) {
        int64_t* const parts = totals + shift / 8 % 2 * kDigits;  // others of a cluster may still read the last digit's
        for (int64_t from = 0; from < length; from += kMost * span.blocks()) {
            for (int at = threadIdx.x; at < kDigits * copies; at += blockDim.x) {
#pragma unroll
                for (int word = 0; word < How::words; ++word) {
                    bins[word * kSeekBins + at] = 0;
                }
            }
            __syncthreads();
            const int64_t rest = length - from, some = rest < kMost * span.blocks() ? rest : kMost * span.blocks();
            for_row<T>(span, row, some, [=](int64_t line, int64_t at) { return element(line, from + at); }, [=](T value) {
                const uint64_t key = in_order<T>(value), sought = Falling ? ~key : key;
                if (shift == kTop || (key ^ known) >> (shift + 8) == 0) {
                    How::add(&bins[(sought >> shift & 255) * copies + own], key);
                }
            });
            __syncthreads();
            for (int at = threadIdx.x; at < kDigits; at += blockDim.x) {
                int64_t all = from > 0 ? parts[at] : 0;
                for (int copy = 0; copy < copies; ++copy) {
                    all += How::of(&bins[at * copies + copy]);
                }
                parts[at] = all;
            }
        }
        meet_in_cluster<Span::split>();
        if constexpr (Span::split != 1) {
            int64_t* const whole = reinterpret_cast<int64_t*>(bins);
            for (int at = threadIdx.x; at < kDigits; at += blockDim.x) {
                int64_t all = 0;
#pragma unroll
                for (int other = 0; other < 8; ++other) {
                    all += other < span.blocks() ? of_block<Span::split>(parts, other)[at] : 0;
                }
                whole[at] = all;
            }
            __syncthreads();
        }
        if (threadIdx.x < 32) {  // a lane has eight of them
            const int64_t* const whole = Span::split != 1 ? reinterpret_cast<const int64_t*>(bins) : parts;
            double sums[8], all = 0;
            unsigned there = 0;
#pragma unroll
            for (int at = 0; at < 8; ++at) {
                const int digit = 8 * lane + at, first = shift < kTop ? static_cast<int>(known >> kTop & 255) : Falling ? 255 - digit : digit;
                there |= static_cast<unsigned>(whole[digit] != 0) << at;
                sums[at] = How::sum(whole[digit], first);
                all += sums[at];
            }
            double through = all;
#pragma unroll
            for (int back = 1; back < 32; back *= 2) {
                const double left = __shfl_up_sync(0xffffffffu, through, back);
                through += lane >= back ? left : 0;
            }
            through += before - all;
            int digit = -1, last = -1;
            double ahead_of_digit = 0, ahead_of_last = 0;
#pragma unroll
            for (int at = 0; at < 8; ++at) {
                if (there >> at & 1) {
                    last = 8 * lane + at;
                    ahead_of_last = through;
                    if (digit < 0 && holds(through + sums[at])) {
                        digit = last;
                        ahead_of_digit = through;
                    }
                }
                through += sums[at];
            }
            const unsigned holding = __ballot_sync(0xffffffffu, digit >= 0), present = __ballot_sync(0xffffffffu, last >= 0);
            // Sums of a digit's parts may be rounded to less than its own: then it is the last of them.
            const bool is_any = holding != 0, is_none = !is_any && (shift == kTop || present == 0);
            if (is_any ? __ffs(static_cast<int>(holding)) - 1 == lane : is_none ? lane == 0 : present >> lane == 1) {
                found = is_any ? digit : is_none ? -1 : last;
                ahead = is_any ? ahead_of_digit : ahead_of_last;
            }
        }
        __syncthreads();
        if (found < 0) {
            meet_in_cluster<Span::split>();
            return false;
        }
        before = ahead;
        known |= static_cast<uint64_t>(Falling ? 255 - found : found) << shift;
    }
    return true;
}

// put(row, the value that would stand at `rank` of a row in order).
template <bool Falling, typename T, typename Span, typename Rank, typename Element, typename Put>
__device__ __forceinline__ void phase_nth(Span span, int64_t rows, int64_t length, Rank rank, Element element, Put put) {
    const auto key_of = [&](int64_t row, int64_t at) { return Falling ? ~in_order<T>(element(row, at)) : in_order<T>(element(row, at)); };
    for (int64_t row = Span::split == 1 ? span.block() : 0; row < rows; row += Span::split == 1 ? span.blocks() : 1) {
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
        uint64_t known;
        seek_by_digits<Falling, T, Counted>(span, row, length, element, [=](double through) { return through > static_cast<double>(wanted); }, known);
        if (threadIdx.x == 0) {
            put(row, from_order<T>(known));
        }
    }
    __syncthreads();
}

// put(row, the first value of a row in falling order at which `holds` of the sum up to it, of positive numbers; the largest where it never does).
template <typename Span, typename Holds, typename Element, typename Put>
__device__ __forceinline__ void phase_reach(Span span, int64_t rows, int64_t length, Holds holds, Element element, Put put) {
    for (int64_t row = Span::split == 1 ? span.block() : 0; row < rows; row += Span::split == 1 ? span.blocks() : 1) {
        uint64_t known;
        const auto reached = [=](double through) { return holds(row, through); };
        if (!seek_by_digits<true, float, Summed>(span, row, length, element, reached, known)) {
            seek_by_digits<true, float, Counted>(span, row, length, element, [](double through) { return through > 0; }, known);
        }
        if (threadIdx.x == 0) {
            put(row, from_order<float>(known));
        }
    }
    __syncthreads();
}
#endif
