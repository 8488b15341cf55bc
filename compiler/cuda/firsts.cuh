// The values in front of a team's rows, and where they are; prelude.cuh brings what this calls.

#if !defined(WITHOUT_FIRSTS)
// Bits that are larger for what comes first, what is no number before all; 0 is for what is not there.
template <bool Falling>
__device__ __forceinline__ unsigned first_key(float value) {
    const unsigned bits = __float_as_uint(value == 0.0f ? 0.0f : value), rising = bits >> 31 ? ~bits : bits | 0x80000000u;
    return value != value ? 0xffffffffu : Falling ? rising : ~rising;
}

template <bool Falling>
__device__ __forceinline__ float first_value(unsigned key) {
    const unsigned rising = Falling ? key : ~key;
    return key == 0xffffffffu ? NAN : __uint_as_float(rising >> 31 ? rising & 0x7fffffffu : ~rising);
}

// The `Count` largest keys of a team's threads and the places of these, of equal ones the first; a thread's pack `item` is the row's
// `member + item * step`. Keys that are found become 0.
template <int Threads, int Team, int Split, int Items, int Width, int Count>
__device__ __forceinline__ void team_first(unsigned (&keys)[Items][Width], int member, int step, unsigned (&found)[Count], int (&places)[Count]) {
    constexpr int kNowhere = 0x7fffffff;
    unsigned own = 0;
    int own_place = kNowhere;
    const auto look = [&](int taken) {
        own = 0;
        own_place = kNowhere;
#pragma unroll
        for (int item = 0; item < Items; ++item) {
#pragma unroll
            for (int lane = 0; lane < Width; ++lane) {
                const int place = (member + item * step) * Width + lane;
                keys[item][lane] = place == taken ? 0 : keys[item][lane];
                own_place = keys[item][lane] > own ? place : own_place;
                own = keys[item][lane] > own ? keys[item][lane] : own;
            }
        }
    };
    look(-1);
#pragma unroll
    for (int rank = 0; rank < Count; ++rank) {
        unsigned key = own;
        int place = own_place;
        if constexpr (Team == 0 || Team > 32 || Split != 1) {
            const uint64_t both = team_reduce<Threads, Team, Split>(
                static_cast<uint64_t>(key) << 32 | ~static_cast<unsigned>(place), uint64_t{0}, [](uint64_t a, uint64_t b) { return a > b ? a : b; });
            key = static_cast<unsigned>(both >> 32);
            place = static_cast<int>(~static_cast<unsigned>(both));
            __syncthreads();
            leave_cluster<Split>();
        } else {
#if defined(__CUDA_ARCH__) && defined(__CUDACC__) && __CUDA_ARCH__ >= 800
            constexpr bool shuffled = Team != 32;
            if constexpr (Team == 32) {
                key = __reduce_max_sync(0xffffffffu, own);
                place = __reduce_min_sync(0xffffffffu, own == key ? own_place : kNowhere);
            }
#else
            constexpr bool shuffled = true;
#endif
            if constexpr (shuffled) {
#pragma unroll
                for (int across = Team / 2; across > 0; across /= 2) {
                    const unsigned other = __shfl_xor_sync(0xffffffffu, key, across);
                    const int other_place = __shfl_xor_sync(0xffffffffu, place, across);
                    place = other > key || (other == key && other_place < place) ? other_place : place;
                    key = other > key ? other : key;
                }
            }
        }
        found[rank] = key;
        places[rank] = place;
        if (rank + 1 < Count && own_place == place) {
            look(place);
        }
    }
}
#endif
