// Sums of rows at computed places, each found by whoever writes the place; joins.cuh brings what they call.

#if !defined(WITHOUT_PHASES)
// Bytes of the numbers of rows by place, `Room` to each, beside how many there are and those for which there was no room; of the widest numbers.
template <int Room>
inline int64_t bucket_bytes(int64_t rows, int64_t places) {
    return (places * Room + places + 1 + rows) * 8 + 16;
}

__device__ __forceinline__ int count_up(int* count) { return atomicAdd(count, 1); }
__device__ __forceinline__ int64_t count_up(int64_t* count) {
    return static_cast<int64_t>(atomicAdd(reinterpret_cast<unsigned long long*>(count), 1ull));
}

// to[place * inner + at] becomes begin(place, at) and the sum of value(row, at) of the rows that go there: step 0 counts nothing yet, step 1 puts the numbers of rows
// into the places' buckets, step 2 sums those of a bucket, whose loads wait for none another, step 3 adds rows that found no room one by one.
template <typename Row, int Room, int Width, typename Span, typename Begin, typename Place, typename Value>
__device__ __forceinline__ void phase_add_rows(Span span, int64_t rows, int64_t inner, float* to, int64_t places, Begin begin, Place place, Value value) {
    if (!span.spread) {
        for_pairs<1>(span, places, inner, [=](int64_t wanted, int64_t at) { to[wanted * inner + at] = begin(wanted, at); });
        for_pairs<1>(span, rows, inner, [=](int64_t row, int64_t at) {
            const int64_t wanted = place(row);
            if (wanted >= 0) {
                atomicAdd(to + wanted * inner + at, value(row, at));
            }
        });
        return;
    }
    if constexpr (!std::is_same<Span, BlockSpan>::value) {
        Row* const buckets = reinterpret_cast<Row*>((reinterpret_cast<uintptr_t>(span.scratch) + 15) / 16 * 16);
        Row* const counts = buckets + places * Room;
        Row* const left = counts + places + 1;
        if (span.step == 0) {
            for_pairs<1>(span, 1, places + 1, [=](int64_t, int64_t at) { counts[at] = 0; });
        } else if (span.step == 1) {
            for_pairs<4>(span, 1, rows, [=](int64_t, int64_t row) {
                const int64_t wanted = place(row);
                if (wanted >= 0) {
                    const Row before = count_up(counts + wanted);
                    Row* const at = before < Room ? buckets + wanted * Room + before : left + count_up(counts + places);
                    *at = static_cast<Row>(row);
                }
            });
        } else if (span.step == 2) {
            for_pairs<1>(span, places, inner / Width, [=](int64_t wanted, int64_t pack) {
                constexpr int kAhead = 4;
                const int64_t at = pack * Width;
                const int count = counts[wanted] < Room ? static_cast<int>(counts[wanted]) : Room;
                float sums[Width];
#pragma unroll
                for (int lane = 0; lane < Width; ++lane) {
                    sums[lane] = begin(wanted, at + lane);
                }
                for (int first = 0; first < count; first += kAhead) {
                    float values[kAhead][Width];
#pragma unroll
                    for (int ahead = 0; ahead < kAhead; ++ahead) {
                        const Row row = first + ahead < count ? buckets[wanted * Room + first + ahead] : -1;
#pragma unroll
                        for (int lane = 0; lane < Width; ++lane) {
                            values[ahead][lane] = row >= 0 ? value(int64_t{row}, at + lane) : 0.0f;
                        }
                    }
#pragma unroll
                    for (int ahead = 0; ahead < kAhead; ++ahead) {
#pragma unroll
                        for (int lane = 0; lane < Width; ++lane) {
                            sums[lane] += values[ahead][lane];
                        }
                    }
                }
#pragma unroll
                for (int lane = 0; lane < Width; ++lane) {
                    to[wanted * inner + at + lane] = sums[lane];
                }
            });
        } else {
            for_pairs<1>(span, int64_t{counts[places]}, inner, [=](int64_t one, int64_t at) {
                const int64_t row = left[one];
                atomicAdd(to + place(row) * inner + at, value(row, at));
            });
        }
    }
}
#endif
