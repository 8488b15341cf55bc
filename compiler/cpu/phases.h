// Phases of a unit, one after another by one thread.
#include <algorithm>
#include <vector>

namespace {

// Memory that a thread keeps for its next call: new pages cost more than many a phase.
template <int Use, typename T>
inline T* kept_memory(int64_t count) {
    static thread_local std::vector<T> whole;
    if (static_cast<int64_t>(whole.size()) < count) {
        whole.resize(count);
    }
    return whole.data();
}

// A phase of a single unit is shared by threads; within a region that has threads already, one does all of it.
constexpr int64_t kSharedFrom = 65536;

template <typename Body>
inline void phase_map(int64_t outer, int64_t inner, Body body) {
#pragma omp parallel for if (outer > 1 && outer * inner > kSharedFrom)
    for (int64_t line = 0; line < outer; ++line) {
#pragma omp simd
        for (int64_t at = 0; at < inner; ++at) {
            body(line, at);
        }
    }
}

template <typename Body>
inline void phase_scatter(int64_t outer, int64_t inner, Body body) {
    for (int64_t line = 0; line < outer; ++line) {
        for (int64_t at = 0; at < inner; ++at) {
            body(line, at);
        }
    }
}

template <typename T>
inline void phase_add(T* to, T value) { *to += value; }
template <typename T, typename Join>
inline void phase_join(T* to, T value, Join join) { *to = join(*to, value); }

// Lanes side by side, joined at the end; a block of steps apart from the others, so that a million numbers are not added one by one.
template <typename T, typename Element, typename Put, typename Join>
inline void phase_fold(int64_t kept, int64_t length, T identity, Element element, Put put, Join join) {
    constexpr int kLanes = 16;
#pragma omp parallel for if (kept > 1 && kept * length > kSharedFrom)
    for (int64_t one = 0; one < kept; ++one) {
        T totals[kLanes];
        std::fill(totals, totals + kLanes, identity);
        for (int64_t block = 0; block < length; block += 64 * kLanes) {
            T lanes[kLanes];
            std::fill(lanes, lanes + kLanes, identity);
            const int64_t end = block + 64 * kLanes < length ? block + 64 * kLanes : length, whole = block + (end - block) / kLanes * kLanes;
            for (int64_t step = block; step < whole; step += kLanes) {
#pragma omp simd
                for (int lane = 0; lane < kLanes; ++lane) {
                    lanes[lane] = join(lanes[lane], element(one, step + lane));
                }
            }
            for (int64_t step = whole; step < end; ++step) {
                lanes[step - whole] = join(lanes[step - whole], element(one, step));
            }
            for (int lane = 0; lane < kLanes; ++lane) {
                totals[lane] = join(totals[lane], lanes[lane]);
            }
        }
        put(one, join_lanes(totals, join));
    }
}

// log(exp(a) + exp(b)); of infinities and NaN the larger.
template <typename T>
inline T log_add(T a, T b) {
    const T most = maximum(a, b);
    return most - most == T(0) ? most + std::log1p(std::exp(minimum(a, b) - most)) : most;
}

// Step by step, columns side by side.
template <typename T, typename Element, typename Put, typename Join>
inline void phase_scan(int64_t columns, int64_t length, T identity, Element element, Put put, Join join) {
    if (columns == 1) {
        T value = identity;
        for (int64_t step = 0; step < length; ++step) {
            value = join(value, element(0, step));
            put(0, step, value);
        }
        return;
    }
    T* const values = kept_memory<1, T>(columns);
    std::fill(values, values + columns, identity);
    for (int64_t step = 0; step < length; ++step) {
#pragma omp simd
        for (int64_t column = 0; column < columns; ++column) {
            values[column] = join(values[column], element(column, step));
            put(column, step, values[column]);
        }
    }
}

// Bits that are in the order of the values; what is no number is the largest, as in torch.
template <typename T>
inline uint64_t in_order(T value) { return static_cast<uint64_t>(static_cast<int64_t>(value)) ^ UINT64_C(1) << 63; }
template <>
inline uint64_t in_order<int32_t>(int32_t value) { return static_cast<uint32_t>(value) ^ 0x80000000u; }
template <>
inline uint64_t in_order<float>(float value) {
    const uint32_t bits = as_bits<uint32_t>(value == 0.0f ? 0.0f : value);
    return value != value ? 0xffffffffu : bits >> 31 ? static_cast<uint32_t>(~bits) : bits | 0x80000000u;
}

// Places 0 to count - 1 in the order of their keys, equal ones as they stood. The keys become what is sorted.
inline void sort_places(uint64_t* keys, int64_t count, int64_t* places) {
    const auto ends = std::minmax_element(keys, keys + count);
    const uint64_t least = count > 0 ? *ends.first : 0, span = count > 0 ? *ends.second - least : 0;
    if (span >> 32 != 0 || count >> 32 != 0) {
        for (int64_t at = 0; at < count; ++at) {
            places[at] = at;
        }
        std::stable_sort(places, places + count, [keys](int64_t a, int64_t b) { return keys[a] < keys[b]; });
        return;
    }
    for (int64_t at = 0; at < count; ++at) {
        keys[at] = (keys[at] - least) << 32 | static_cast<uint64_t>(at);
    }
    if (count < 512) {
        std::sort(keys, keys + count);
    } else {  // by eleven bits at a time, the lowest first
        uint64_t* other = kept_memory<2, uint64_t>(count);
        for (int digit = 32; digit < 64 && span >> (digit - 32) != 0; digit += 11) {
            int64_t first[2048] = {}, before = 0;
            for (int64_t at = 0; at < count; ++at) {
                ++first[keys[at] >> digit & 2047];
            }
            for (int64_t& one : first) {
                before += one;
                one = before - one;
            }
            for (int64_t at = 0; at < count; ++at) {
                other[first[keys[at] >> digit & 2047]++] = keys[at];
            }
            std::swap(keys, other);
        }
    }
    for (int64_t at = 0; at < count; ++at) {
        places[at] = static_cast<int64_t>(keys[at] & 0xffffffffu);
    }
}

// `places`: null where nobody reads them.
template <bool Falling, typename T, typename Stored, typename Element>
inline void phase_sort(int64_t rows, int64_t length, Stored* values, int64_t* places, Element element) {
    uint64_t* const keys = kept_memory<3, uint64_t>(length);
    Stored* const given = kept_memory<4, Stored>(length);
    for (int64_t one = 0; one < rows; ++one) {
        for (int64_t at = 0; at < length; ++at) {
            const T value = element(one, at);
            const uint64_t key = in_order<T>(value);
            given[at] = static_cast<Stored>(value);
            keys[at] = Falling ? ~key : key;
        }
        int64_t* const own = places != nullptr ? places + one * length : kept_memory<5, int64_t>(length);
        sort_places(keys, length, own);
        for (int64_t at = 0; at < length; ++at) {
            values[one * length + at] = given[own[at]];
        }
    }
}

// put(row, the value that would stand at `rank` of a row in order).
template <bool Falling, typename T, typename Rank, typename Element, typename Put>
inline void phase_nth(int64_t rows, int64_t length, Rank rank, Element element, Put put) {
    uint64_t* const keys = kept_memory<3, uint64_t>(length);
    T* const given = kept_memory<5, T>(length);
    int64_t* const left = kept_memory<6, int64_t>(length);
    for (int64_t one = 0; one < rows; ++one) {
        int64_t counts[2048] = {}, before = 0, count = 0, wanted = rank(one);
        uint64_t least = ~uint64_t{0}, most = 0;
        for (int64_t at = 0; at < length; ++at) {
            given[at] = element(one, at);
            keys[at] = Falling ? ~in_order<T>(given[at]) : in_order<T>(given[at]);
            least = keys[at] < least ? keys[at] : least;
            most = keys[at] > most ? keys[at] : most;
        }
        int digit = 0;
        while ((most - least) >> digit > 2047) {
            ++digit;
        }
        for (int64_t at = 0; at < length; ++at) {
            ++counts[(keys[at] - least) >> digit];
        }
        wanted = wanted < 0 ? 0 : wanted < length ? wanted : length - 1;
        uint64_t bin = 0;
        while (before + counts[bin] <= wanted) {
            before += counts[bin++];
        }
        for (int64_t at = 0; at < length; ++at) {
            if ((keys[at] - least) >> digit == bin) {
                left[count++] = at;
            }
        }
        std::nth_element(left, left + (wanted - before), left + count, [keys](int64_t a, int64_t b) { return keys[a] < keys[b]; });
        put(one, given[left[wanted - before]]);
    }
}

// put(row, the first value of a row in falling order at which `holds` of the sum up to it; the largest where it never does): sums of whole
// ranges of values say in which range, whose values alone are put in order.
template <typename Holds, typename Element, typename Put>
inline void phase_reach(int64_t rows, int64_t length, Holds holds, Element element, Put put) {
    uint64_t* const keys = kept_memory<3, uint64_t>(length);
    float* const given = kept_memory<5, float>(length);
    int64_t* const left = kept_memory<6, int64_t>(length);
    for (int64_t one = 0; one < rows; ++one) {
        double sums[2049] = {}, before = 0;
        bool present[2049] = {};
        uint64_t least = ~uint64_t{0}, most = 0;
        int64_t largest = 0, count = 0;
        for (int64_t at = 0; at < length; ++at) {
            given[at] = element(one, at);
            keys[at] = ~in_order<float>(given[at]);
            largest = keys[at] < least ? at : largest;
            least = keys[at] < least ? keys[at] : least;
            most = keys[at] > most ? keys[at] : most;
        }
        int digit = 0;
        while ((most - least) >> digit > 2047) {
            ++digit;
        }
        for (int64_t at = 0; at < length; ++at) {
            sums[(keys[at] - least) >> digit] += given[at];
            present[(keys[at] - least) >> digit] = true;
        }
        int64_t bin = 0;
        while (bin < 2048 && !(present[bin] && holds(one, before + sums[bin]))) {
            before += sums[bin++];
        }
        for (int64_t at = 0; at < length && bin < 2048; ++at) {
            if (static_cast<int64_t>((keys[at] - least) >> digit) == bin) {
                left[count++] = at;
            }
        }
        std::sort(left, left + count, [keys](int64_t a, int64_t b) { return keys[a] < keys[b]; });
        int64_t found = count > 0 ? left[count - 1] : largest;
        for (int64_t at = 0; at < count; ++at) {
            before += given[left[at]];
            if (holds(one, before)) {
                found = left[at];
                break;
            }
        }
        put(one, given[found]);
    }
}

}  // namespace
