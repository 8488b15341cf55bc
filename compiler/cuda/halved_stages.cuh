// A tile of 16-bit operands: 128 or 64 rows, 64 steps of K a stage, which has the left sides and behind them the right ones. On Hopper two warp
// groups multiply what is there (wgmma), of 128 rows a half each, of 64 rows every other stage each; one thread asks for boxes of the next stages
// (TMA), or two groups in turn bring what no box holds. Elsewhere all threads bring a stage, and eight warps multiply it (mma.sync), for which
// nothing was measured.
constexpr int kMakers = 256, kAskingThreads = kMakers + 128, kBringingThreads = kMakers + 256, kTileSteps = 64;
template <int Rows, int Columns, int Lefts, int Rights>
constexpr int kTileStage = (Lefts * Rows + Rights * Columns) * kTileSteps * 2;
// Of 64 rows two blocks share a multiprocessor.
template <int Rows, int Columns, int Lefts, int Rights>
constexpr int kRingSlots = (Rows == 64 ? 112 : 227) * 1024 / (kTileStage<Rows, Columns, Lefts, Rights> + 16);
template <int Rows, int Columns, int Lefts, int Rights>
constexpr int kTileSlots = kArchitectures[0] != 900 ? 1 : kRingSlots<Rows, Columns, Lefts, Rights> < 8 ? kRingSlots<Rows, Columns, Lefts, Rights> : 8;
// Sums that are added in shared memory: those of two groups, or of blocks that share a depth.
template <int Columns, int Products>
constexpr int kSumsBytes = Products * 128 * kSumsLine<Columns> * 4;
template <int Rows, int Columns, int Lefts, int Rights>
constexpr int kRingBytes = kTileSlots<Rows, Columns, Lefts, Rights> * (kTileStage<Rows, Columns, Lefts, Rights> + 16);
template <int Rows, int Columns, int Lefts, int Rights, int Products>
constexpr int kTileBytes = kRingBytes<Rows, Columns, Lefts, Rights> > kSumsBytes<Columns, Products> ? kRingBytes<Rows, Columns, Lefts, Rights> : kSumsBytes<Columns, Products>;

// Where eight neighbours lie in their side's part of a stage, in bytes: where those are steps, a place's 64 are a line, else a step's 64 places
// are; the 16 bytes p of line l are at p ^ l % 8, as wgmma reads them.
template <bool AlongK>
__device__ __forceinline__ int eight_at(int place, int step) {
    return AlongK ? place * 128 + ((step / 8) ^ (place % 8)) * 16 : place / 64 * (kTileSteps * 128) + step * 128 + ((place % 64 / 8) ^ (step % 8)) * 16;
}

// bring(place, step, to) for each eight of a side of `Places` places, by `threads` threads.
template <int Places, bool AlongK, int AtOnce = 2, typename Bring>
__device__ __forceinline__ void bring_side(char* to, int thread, int threads, Bring bring) {
#pragma unroll AtOnce
    for (int eight = thread; eight < Places * kTileSteps / 8; eight += threads) {
        const int place = AlongK ? eight / 8 : eight % (Places / 8) * 8, step = AlongK ? eight % 8 * 8 : eight / (Places / 8);
        bring(place, step, to + eight_at<AlongK>(place, step));
    }
}

// A pack that waits, in whole registers.
template <typename T, int Items>
struct alignas(sizeof(T) * Items < 16 ? sizeof(T) * Items : 16) PackInWords {
    uint32_t words[sizeof(T) * Items / 4];
};
template <int Items, typename T>
__device__ __forceinline__ PackInWords<T, Items> load_words(const T* from) {
    return *reinterpret_cast<const PackInWords<T, Items>*>(from);
}
template <typename T, int Items>
__device__ __forceinline__ Pack<T, Items> unpack(const PackInWords<T, Items>& from) {
    return *reinterpret_cast<const Pack<T, Items>*>(&from);
}

// The same in two steps where an eight is made of what is read: all of a stage is read while another is multiplied.
template <int Places>
constexpr int kReads = Places * kTileSteps / 8 / 128;
template <int Places, bool AlongK, typename Read, typename Fetch>
__device__ __forceinline__ void fetch_side(Read (&read)[kReads<Places>], int thread, int threads, Fetch fetch) {
#pragma unroll
    for (int i = 0; i < kReads<Places>; ++i) {
        const int eight = thread + i * threads;
        if (eight < Places * kTileSteps / 8) {
            read[i] = fetch(AlongK ? eight / 8 : eight % (Places / 8) * 8, AlongK ? eight % 8 * 8 : eight / (Places / 8));
        }
    }
}
template <int Places, bool AlongK, typename Read, typename Store>
__device__ __forceinline__ void store_side(const Read (&read)[kReads<Places>], char* to, int thread, int threads, Store store) {
#pragma unroll
    for (int i = 0; i < kReads<Places>; ++i) {
        const int eight = thread + i * threads;
        if (eight < Places * kTileSteps / 8) {
            const int place = AlongK ? eight / 8 : eight % (Places / 8) * 8, step = AlongK ? eight % 8 * 8 : eight / (Places / 8);
            store(read[i], place, step, to + eight_at<AlongK>(place, step));
        }
    }
}

// The words that halves lie in which begin at element `first` of the `count` of a tensor, zeros beyond it. There is an even number of them, and the
// first begins a word.
template <int Words, typename T, typename Index>
__device__ __forceinline__ void load_words_around(uint32_t (&words)[Words], const T* from, Index first, Index count) {
    const Index word = first >> 1;
#pragma unroll
    for (int i = 0; i < Words; ++i) {
        if (word + i >= 0 && word + i < count / 2) {
            words[i] = reinterpret_cast<const uint32_t*>(from)[word + i];
        }
    }
}
// Halves of them, from the first word's second half on where they are `odd`.
template <int Words, int Made>
__device__ __forceinline__ void shift_halves(const uint32_t (&words)[Words], int odd, uint32_t (&made)[Made]) {
#pragma unroll
    for (int i = 0; i < Made; ++i) {
        made[i] = __funnelshift_r(words[i], words[i + 1], odd * 16);
    }
}
template <int Words>
__device__ __forceinline__ void keep_half(uint32_t (&words)[Words], int at, bool is_one) {
    words[at / 2] &= is_one ? 0xffffffffu : at % 2 ? 0x0000ffffu : 0xffff0000u;
}

constexpr int kEightWords = 5;  // that eight halves lie in
// `Taps` steps in a row whose eights begin one half after each other: one line of halves is read for all of them. Steps of a stage lie in so many
// groups, and each thread of 128 has so many lines of eight places.
template <int Taps>
constexpr int kGroups = (kTileSteps + Taps - 2) / Taps + 1;
template <int Places, int Taps>
constexpr int kLines = (kGroups<Taps> * Places / 8 + 127) / 128;
template <int Taps>
constexpr int kLineWords = (8 + Taps) / 2 + 1;
template <int Reads, typename Read>
__device__ __forceinline__ uint32_t& word_of(Read (&read)[Reads], int at) {
    return read[at / kEightWords].words[at % kEightWords];
}
template <int Places, int Taps, int Reads, typename Read, typename Index, typename Fetch>
__device__ __forceinline__ void fetch_lines(Read (&read)[Reads], Index first_step, int thread, int threads, Fetch fetch) {
#pragma unroll
    for (int i = 0; i < kLines<Places, Taps>; ++i) {
        const int line = thread + i * threads;
        if (line < kGroups<Taps> * Places / 8) {
            uint32_t words[kLineWords<Taps>] = {};
            fetch(words, line % (Places / 8) * 8, first_step / Taps + line / (Places / 8));
#pragma unroll
            for (int word = 0; word < kLineWords<Taps>; ++word) {
                word_of(read, i * kLineWords<Taps> + word) = words[word];
            }
        }
    }
}
// line_of(words, halves, place, group) puts the halves from the first of the group's steps on.
template <int Places, int Taps, int Reads, typename Read, typename Index, typename Line>
__device__ __forceinline__ void store_lines(const Read (&read)[Reads], Index first_step, char* to, int thread, int threads, Line line_of) {
#pragma unroll
    for (int i = 0; i < kLines<Places, Taps>; ++i) {
        const int line = thread + i * threads, place = line % (Places / 8) * 8;
        if (line < kGroups<Taps> * Places / 8) {
            const Index group = first_step / Taps + line / (Places / 8);
            uint32_t words[kLineWords<Taps>], halves[kLineWords<Taps> - 1];
#pragma unroll
            for (int word = 0; word < kLineWords<Taps>; ++word) {
                words[word] = word_of(const_cast<Read(&)[Reads]>(read), i * kLineWords<Taps> + word);
            }
            line_of(words, halves, place, group);
#pragma unroll
            for (int tap = 0; tap < Taps; ++tap) {
                const int step = static_cast<int>(group * Taps - first_step) + tap;
                PackInWords<__half, 8> eight;
#pragma unroll
                for (int word = 0; word < 4; ++word) {
                    eight.words[word] = tap % 2 == 0 ? halves[tap / 2 + word] : __funnelshift_r(halves[tap / 2 + word], halves[tap / 2 + word + 1], 16);
                }
                if (step >= 0 && step < kTileSteps) {
                    *reinterpret_cast<PackInWords<__half, 8>*>(to + eight_at<false>(place, step)) = eight;
                }
            }
        }
    }
}

// A byte as a number: its bits behind those of 2^23, in which ones are counted.
__device__ __forceinline__ float float_of(const Pack<int8_t, 8>& bytes, int at) {
    const uint32_t four = reinterpret_cast<const uint32_t*>(&bytes)[at / 4] ^ 0x80808080u;
    return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440 | at % 4)) - 8388736.0f;
}
__device__ __forceinline__ float float_of(const Pack<uint8_t, 8>& bytes, int at) {
    const uint32_t four = reinterpret_cast<const uint32_t*>(&bytes)[at / 4];
    return __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440 | at % 4)) - 8388608.0f;
}

template <typename T, typename Byte>
__device__ __forceinline__ Pack<T, 8> eight_of(const Pack<Byte, 8>& bytes) {
    Pack<T, 8> made;
    if constexpr (std::is_same<T, __nv_bfloat16>::value) {  // the upper half of such a float is all of it
#pragma unroll
        for (int at = 0; at < 8; at += 2) {
            reinterpret_cast<uint32_t*>(&made)[at / 2] = __byte_perm(__float_as_uint(float_of(bytes, at)), __float_as_uint(float_of(bytes, at + 1)), 0x7632);
        }
    } else {
#pragma unroll
        for (int at = 0; at < 8; ++at) {
            made.at[at] = to<T>(float_of(bytes, at));
        }
    }
    return made;
}

#if !defined(WITHOUT_FP8)
template <typename T>
__device__ __forceinline__ Pack<T, 8> eight_of(const Pack<__nv_fp8_e4m3, 8>& bytes) {
    Pack<T, 8> made;
#pragma unroll
    for (int at = 0; at < 8; at += 2) {
#if defined(__CUDACC__) && __CUDA_ARCH__ >= 890
        uint32_t two;
        asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(two) : "h"(reinterpret_cast<const uint16_t*>(&bytes)[at / 2]));
        if constexpr (std::is_same<T, __half>::value) {
            reinterpret_cast<uint32_t*>(&made)[at / 2] = two;
        } else {
            const float2 both = __half22float2(reinterpret_cast<const __half2&>(two));
            store_two(&made.at[at], both.x, both.y);
        }
#else
        made.at[at] = to<T>(to_float(bytes.at[at]));
        made.at[at + 1] = to<T>(to_float(bytes.at[at + 1]));
#endif
    }
    return made;
}
#endif

// 16 bytes into shared memory, zeros where there are none to read. They are there when the thread has waited.
__device__ __forceinline__ void copy_eight(char* to, const void* from, bool inside) {
#if __CUDA_ARCH__ >= 800
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(inside ? 16 : 0) : "memory");
#else
    for (int i = 0; i < 16; ++i) {
        to[i] = inside ? static_cast<const char*>(from)[i] : 0;
    }
#endif
}

