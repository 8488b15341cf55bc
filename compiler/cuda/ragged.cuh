#pragma once
#include "packs.cuh"

#if !defined(WITHOUT_RAGGED)
// Neighbours that begin anywhere among the tensor's `count` elements from `begin` on: two aligned pieces, or more, are moved at once and
// shifted together. Element by element every load would touch as many lines of memory as the whole does.
template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_shifted(const T* from, const T* begin, int64_t count) {
    using Whole = Pack<T, Items>;
    constexpr int kPiece = alignof(Whole), kWords = kPiece / 4, kPieces = sizeof(Whole) / kPiece, kEach = kPiece / sizeof(T);
    Whole pack;
    if constexpr (kPiece >= 4) {
        const int beyond = static_cast<int>(reinterpret_cast<uintptr_t>(from) % kPiece), skipped = beyond / static_cast<int>(sizeof(T));
        const T* first = from - skipped;
        if (first >= begin && first + (kPieces + 1) * kEach <= begin + count) {
            unsigned words[(kPieces + 1) * kWords];
#pragma unroll
            for (int piece = 0; piece <= kPieces; ++piece) {
                *reinterpret_cast<Pack<unsigned, kWords>*>(words + piece * kWords) =
                    *reinterpret_cast<const Pack<unsigned, kWords>*>(first + piece * kEach);
            }
#pragma unroll
            for (int step = kWords / 2; step > 0; step /= 2) {
#pragma unroll
                for (int word = 0; word + step < (kPieces + 1) * kWords; ++word) {
                    words[word] = beyond / 4 & step ? words[word + step] : words[word];
                }
            }
            unsigned* made = reinterpret_cast<unsigned*>(&pack);
#pragma unroll
            for (int word = 0; word < kPieces * kWords; ++word) {
                made[word] = sizeof(T) >= 4 ? words[word] : static_cast<unsigned>(((static_cast<uint64_t>(words[word + 1]) << 32) | words[word]) >> beyond % 4 * 8);
            }
            return pack;
        }
    }
#pragma unroll
    for (int lane = 0; lane < Items; ++lane) {
        pack.at[lane] = from[lane];
    }
    return pack;
}

// The pack that begins at a row's element `first`, before the row if that is negative. `Aligned`: whether it begins where a pack may be
// moved at once; then it may hold what lies beside the row, as long as `reach` elements from the row's first on are the tensor's. Otherwise
// lanes outside the row hold its first or last element. Nothing is waited for here, so that all packs of a row are in flight at once.
template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_beside(const T* from, int first, int length) {
    Pack<T, Items> pack;
#pragma unroll
    for (int lane = 0; lane < Items; ++lane) {
        const int at = first + lane < 0 ? 0 : first + lane < length ? first + lane : length - 1;
        pack.at[lane] = from[at - first];
    }
    return pack;
}

template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_part(const T* from, int first, int length, int reach) {
    using Whole = Pack<T, Items>;
    if constexpr (sizeof(T) == 2 && Items % 2 == 0) {
        Pack<unsigned, Items / 2> words;
        if (first + Items <= reach) {
            words = load_pack<Items / 2>(reinterpret_cast<const unsigned*>(from));
        } else {
            const Whole pack = load_beside<Items>(from, first, length);
#pragma unroll
            for (int word = 0; word < Items / 2; ++word) {
                words.at[word] = reinterpret_cast<const uint16_t&>(pack.at[2 * word]) | reinterpret_cast<const uint16_t&>(pack.at[2 * word + 1]) << 16;
            }
        }
        return reinterpret_cast<const Whole&>(words);
    } else {
        return first + Items <= reach ? load_pack<Items>(from) : load_beside<Items>(from, first, length);
    }
}

template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_shifted_part(const T* from, const T* begin, int64_t count, int first, int length) {
    return first >= 0 && first + Items <= length ? load_shifted<Items>(from, begin, count) : load_beside<Items>(from, first, length);
}

// A pack that other paths store element by element. Without this the compiler takes it apart here as well, into as many stores.
template <typename T, int Items>
__device__ __forceinline__ void store_whole(T* to_memory, const Pack<T, Items>& pack) {
    if constexpr (sizeof(pack) % 4 == 0) {
        Pack<unsigned, sizeof(pack) / 4> words;
#pragma unroll
        for (int word = 0; word < static_cast<int>(sizeof(pack) / 4); ++word) {
            words.at[word] = reinterpret_cast<const unsigned*>(&pack)[word];
            asm volatile("" : "+r"(words.at[word]));
        }
        store_pack(reinterpret_cast<unsigned*>(to_memory), words);
    } else {
        store_pack(to_memory, pack);
    }
}

// A whole pack, or the one element there.
template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_one(const T* from) {
    Pack<T, Items> pack;
    pack.at[0] = from[0];
    return pack;
}

template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_run(const T* from, bool whole) {
    return whole ? load_pack<Items>(from) : load_one<Items>(from);
}

template <int Items, typename T>
__device__ __forceinline__ Pack<T, Items> load_shifted_run(const T* from, const T* begin, int64_t count, bool whole) {
    return whole ? load_shifted<Items>(from, begin, count) : load_one<Items>(from);
}

template <bool Aligned, typename T, int Items>
__device__ __forceinline__ void store_run(T* to_memory, const Pack<T, Items>& pack, bool whole) {
    if (Aligned && whole) {
        return store_whole(to_memory, pack);
    }
#pragma unroll
    for (int lane = 0; lane < Items; ++lane) {
        if (whole || lane == 0) {
            to_memory[lane] = pack.at[lane];
        }
    }
}

template <bool Aligned, typename T, int Items>
__device__ __forceinline__ void store_rounded_run(T* to_memory, const float (&values)[Items], bool whole) {
    Pack<T, Items> pack;
#pragma unroll
    for (int one = 0; one < Items; one += 2) {
        if (whole) {
            store_two(&pack.at[one], values[one], values[one + 1]);
        }
    }
    if (!whole) {
        pack.at[0] = to<T>(values[0]);
    }
    store_run<Aligned>(to_memory, pack, whole);
}

// A value, or another one for what lies outside: both are there, no lane of a pack is branched around.
template <typename T>
__device__ __forceinline__ T select_inside(bool inside, T value, T other) { return inside ? value : other; }
#if defined(__CUDA_ARCH__) && defined(__CUDACC__)
template <>
__device__ __forceinline__ float select_inside<float>(bool inside, float value, float other) {
    float selected;
    asm("{ .reg .pred inside; setp.ne.s32 inside, %3, 0; selp.f32 %0, %1, %2, inside; }"
        : "=f"(selected) : "f"(value), "f"(other), "r"(static_cast<int>(inside)));
    return selected;
}
#endif

template <bool Aligned, typename T, int Items>
__device__ __forceinline__ void store_part(T* to_memory, const Pack<T, Items>& pack, int first, int length) {
    if (Aligned && first >= 0 && first + Items <= length) {
        return store_whole(to_memory, pack);
    }
#pragma unroll
    for (int lane = 0; lane < Items; ++lane) {
        if (static_cast<unsigned>(first + lane) < static_cast<unsigned>(length)) {
            to_memory[lane] = pack.at[lane];
        }
    }
}

template <bool Aligned, typename T, int Items>
__device__ __forceinline__ void store_rounded_part(T* to_memory, const float (&values)[Items], int first, int length) {
    Pack<T, Items> pack;
#pragma unroll
    for (int one = 0; one < Items; one += 2) {
        store_two(&pack.at[one], values[one], values[one + 1]);
    }
    store_part<Aligned>(to_memory, pack, first, length);
}
#endif
