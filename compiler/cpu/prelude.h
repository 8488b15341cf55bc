// What generated C++ calls, behind vector_math.h. The generator puts it in the file whole.
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <memory>
#if defined(_OPENMP)
#include <omp.h>
#endif
namespace {

struct bfloat16 {
    uint16_t bits;
};
struct fp8_e4m3 {  // bits of torch's float8_e4m3fn: no infinity, the largest is 448
    uint8_t bits;
};

template <typename T>
inline T to_float(T value) { return value; }
inline float to_float(_Float16 value) { return static_cast<float>(value); }
inline float to_float(bfloat16 value) { return as_bits<float>(static_cast<uint32_t>(value.bits) << 16); }
inline float to_float(fp8_e4m3 value) {
    const float size = as_bits<float>(static_cast<uint32_t>(value.bits & 0x7fu) << 20) * 0x1p120f;
    const float known = (value.bits & 0x7fu) == 0x7fu ? __builtin_nanf("") : size;
    return value.bits & 0x80u ? -known : known;
}

template <typename T, typename From>
inline T to(From value) { return static_cast<T>(value); }
template <>
inline bfloat16 to<bfloat16, float>(float value) {  // to nearest, ties to even; a NaN stays one
    const uint32_t bits = as_bits<uint32_t>(value), rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded)};
}
template <>
inline fp8_e4m3 to<fp8_e4m3, float>(float value) {  // to nearest, ties to even, 448 where it is larger; a NaN stays one
    const uint32_t bits = as_bits<uint32_t>(value), sign = bits >> 24 & 0x80u;
    const float given = as_bits<float>(bits & 0x7fffffffu), size = given > 448.0f ? 448.0f : given;
    const uint32_t whole = as_bits<uint32_t>(size), tiny = as_bits<uint32_t>(size + 16384.0f) - 0x46800000u;  // a float's last bit there is 2^-9
    const uint32_t normal = ((whole + 0x7ffffu + (whole >> 20 & 1u)) >> 20) - (120u << 3);
    return {static_cast<uint8_t>(sign | (value != value ? 0x7fu : size < 0x1p-6f ? tiny : normal))};
}

// A half's bits and back as the hardware does it, by operations that g++ puts in vectors.
using Word [[gnu::may_alias]] = uint16_t;
[[maybe_unused]] inline float half_to_float(uint32_t bits) {
    const uint32_t size = as_bits<uint32_t>(as_bits<float>((bits & 0x7fffu) << 13) * 0x1p112f);
    return as_bits<float>((bits & 0x8000u) << 16 | size | ((bits & 0x7c00u) == 0x7c00u ? 0x7f800000u : 0u));
}
[[maybe_unused]] inline uint32_t float_to_half(float value) {  // to nearest, ties to even
    const uint32_t bits = as_bits<uint32_t>(value), size = bits & 0x7fffffffu;
    const uint32_t normal = ((size + 0xfffu + (size >> 13 & 1u)) >> 13) - (112u << 10);
    const uint32_t tiny = as_bits<uint32_t>(as_bits<float>(size) + 0.5f) - 0x3f000000u;  // a float's last bit there is 2^-24
    const uint32_t finite = size < 0x38800000u ? tiny : normal, large = size > 0x7f800000u ? 0x7e00u : 0x7c00u;
    return (bits >> 16 & 0x8000u) | (size < 0x477ff000u ? finite : large);
}

[[maybe_unused]] inline float round_to_float8_e4m3fn(float value) { return to_float(to<fp8_e4m3>(value)); }
[[maybe_unused]] inline float round_to_float16(float value) { return to_float(to<_Float16>(value)); }
[[maybe_unused]] inline float round_to_bfloat16(float value) { return to_float(to<bfloat16>(value)); }
template <typename T>
inline int32_t round_to_int8(T value) { return static_cast<int8_t>(value); }
template <typename T>
inline int32_t round_to_uint8(T value) { return static_cast<uint8_t>(value); }
template <typename T>
inline int32_t round_to_int16(T value) { return static_cast<int16_t>(value); }

// Of integers, towards minus infinity.
template <typename T>
inline T floor_quotient(T a, T b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }
template <typename T>
inline T floor_remainder(T a, T b) { return a - floor_quotient(a, b) * b; }

// NaN wins, as in torch. One instruction picks b where either is NaN, so that only a's is left to see to.
template <typename T>
inline T maximum(T a, T b) {
    const T larger = a > b ? a : b;
    return a != a ? a : larger;
}
template <typename T>
inline T minimum(T a, T b) {
    const T smaller = a < b ? a : b;
    return a != a ? a : smaller;
}

#if defined(__AVX2__)
// By the compiler's own vectors: <immintrin.h> takes it as long as the rest of this file and the kernels behind it.
using Halves8 [[gnu::vector_size(16), gnu::may_alias, gnu::aligned(1)]] = int16_t;
using Words8 [[gnu::vector_size(16), gnu::may_alias, gnu::aligned(1)]] = uint16_t;
using Bytes8 [[gnu::vector_size(8), gnu::may_alias, gnu::aligned(1)]] = uint8_t;
using Wide2 [[gnu::vector_size(16), gnu::may_alias, gnu::aligned(1)]] = long long;
using Bits8 [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(1)]] = uint32_t;
using Floats8 [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(1)]] = float;
using Wide4 [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(1)]] = long long;
template <int Lanes>
struct Vectors {
    typedef Words8 Words; typedef Bytes8 Bytes; typedef Bits8 Bits; typedef Floats8 Floats; typedef Wide2 Stored;
};
#if defined(__clang__)
constexpr int MOST_LANES = 8;
inline Bits8 widen(Words8 words) { return __builtin_convertvector(words, Bits8); }
inline Bits8 widen(Bytes8 bytes) { return __builtin_convertvector(bytes, Bits8); }
inline Bytes8 narrow_to_bytes(Bits8 bits) { return __builtin_convertvector(bits, Bytes8); }
inline void put_past_caches(Wide4* to, Wide4 value) { __builtin_nontemporal_store(value, to); }
inline void put_past_caches(Wide2* to, Wide2 value) { __builtin_nontemporal_store(value, to); }
#else
inline Bits8 widen(Words8 words) { return (Bits8)__builtin_ia32_pmovzxwd256((Halves8)words); }
using Chars16 [[gnu::vector_size(16)]] = char;
inline Bits8 widen(Bytes8 bytes) { return (Bits8)__builtin_ia32_pmovzxbd256((Chars16)Wide2{as_bits<long long>(bytes), 0}); }
inline Bytes8 narrow_to_bytes(Bits8 bits) {  // each below 256
    const Halves8 words = (Halves8)__builtin_convertvector(bits, Words8);
    return as_bits<Bytes8>(((Wide2)__builtin_ia32_packuswb128(words, words))[0]);
}
inline void put_past_caches(Wide4* to, Wide4 value) { __builtin_ia32_movntdq256(to, value); }
inline void put_past_caches(Wide2* to, Wide2 value) { __builtin_ia32_movntdq(to, value); }
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__)
// Where lanes are sixteen in one register, they are written and read so: a load of 64 bytes waits for two stores of 32.
constexpr int MOST_LANES = 16;
using Halves16 [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(1)]] = int16_t;
using Words16 [[gnu::vector_size(32), gnu::may_alias, gnu::aligned(1)]] = uint16_t;
using Bytes16 [[gnu::vector_size(16), gnu::may_alias, gnu::aligned(1)]] = uint8_t;
using Bits16 [[gnu::vector_size(64), gnu::may_alias, gnu::aligned(1)]] = uint32_t;
using Floats16 [[gnu::vector_size(64), gnu::may_alias, gnu::aligned(1)]] = float;
template <>
struct Vectors<16> {
    typedef Words16 Words; typedef Bytes16 Bytes; typedef Bits16 Bits; typedef Floats16 Floats; typedef Wide4 Stored;
};
using Signed16 [[gnu::vector_size(64)]] = int;
inline Bits16 widen(Words16 words) { return (Bits16)__builtin_ia32_pmovzxwd512_mask((Halves16)words, Signed16{}, 0xffff); }
inline Bits16 widen(Bytes16 bytes) { return (Bits16)__builtin_ia32_pmovzxbd512_mask((Chars16)bytes, Signed16{}, 0xffff); }
inline Words16 narrow(Bits16 bits) { return (Words16)__builtin_ia32_pmovdw512_mask((Signed16)bits, Halves16{}, 0xffff); }
inline Bytes16 narrow_to_bytes(Bits16 bits) { return (Bytes16)__builtin_ia32_pmovdb512_mask((Signed16)bits, Chars16{}, 0xffff); }
inline Floats16 to_floats(Words16 halves) { return __builtin_ia32_vcvtph2ps512_mask((Halves16)halves, Floats16{}, 0xffff, 4); }
inline Words16 to_halves(Floats16 value) { return (Words16)__builtin_ia32_vcvtps2ph512_mask(value, 0, Halves16{}, 0xffff); }
#else
constexpr int MOST_LANES = 8;
#endif
#endif
inline Words8 narrow(Bits8 bits) { return __builtin_convertvector(bits, Words8); }
#if defined(__F16C__)
inline Floats8 to_floats(Words8 halves) { return __builtin_ia32_vcvtph2ps256((Halves8)halves); }
inline Words8 to_halves(Floats8 value) { return (Words8)__builtin_ia32_vcvtps2ph256(value, 0); }  // to nearest
#endif
template <int Items>
constexpr int LANES = Items % MOST_LANES == 0 ? MOST_LANES : 8;
#endif

// Neighbouring elements; 16-bit floats are floats in it, converted by the hardware.
template <typename T, int Items>
struct Pack {
    T at[Items];
};

template <int Items, typename T>
inline const Pack<T, Items>& load_pack(const T* from) {  // where it lies: a copy would go through the stack
    return *reinterpret_cast<const Pack<T, Items>*>(from);
}

template <int Items>
inline Pack<float, Items> load_pack(const _Float16* from) {
    Pack<float, Items> pack;
#if defined(__F16C__) && defined(__AVX2__)
    if constexpr (Items % 8 == 0) {
        using V = Vectors<LANES<Items>>;
        for (int item = 0; item < Items; item += LANES<Items>) {
            *reinterpret_cast<typename V::Floats*>(pack.at + item) = to_floats(*reinterpret_cast<const typename V::Words*>(from + item));
        }
        return pack;
    }
#endif
    for (int item = 0; item < Items; ++item) {
        pack.at[item] = half_to_float(reinterpret_cast<const Word*>(from)[item]);
    }
    return pack;
}

template <int Items>
inline Pack<float, Items> load_pack(const bfloat16* from) {
    Pack<float, Items> pack;
#if defined(__AVX2__)
    if constexpr (Items % 8 == 0) {
        using V = Vectors<LANES<Items>>;
        for (int item = 0; item < Items; item += LANES<Items>) {
            *reinterpret_cast<typename V::Bits*>(pack.at + item) = widen(*reinterpret_cast<const typename V::Words*>(from + item)) << 16;
        }
        return pack;
    }
#endif
    for (int item = 0; item < Items; ++item) {
        pack.at[item] = to_float(from[item]);
    }
    return pack;
}

template <int Items>
inline Pack<float, Items> load_pack(const fp8_e4m3* from) {
    Pack<float, Items> pack;
#if defined(__AVX2__)
    if constexpr (Items % 8 == 0) {
        using V = Vectors<LANES<Items>>;
        using Bits = typename V::Bits;
        for (int item = 0; item < Items; item += LANES<Items>) {  // as to_float
            const Bits bits = widen(*reinterpret_cast<const typename V::Bytes*>(from + item)), whole = bits & 0x7f;
            const Bits is_nan = (Bits)(whole == 0x7f), size = (Bits)((typename V::Floats)(whole << 20) * 0x1p120f);
            *reinterpret_cast<Bits*>(pack.at + item) = (bits & 0x80) << 24 | (is_nan & 0x7fc00000) | (~is_nan & size);
        }
        return pack;
    }
#endif
    for (int item = 0; item < Items; ++item) {
        pack.at[item] = to_float(from[item]);
    }
    return pack;
}

// Past the caches where STREAM says so: what is written is not read first.
#if defined(__AVX2__)
inline void put_vector(void* to, Wide2 value) {
    STREAM && reinterpret_cast<uintptr_t>(to) % 16 == 0 ? put_past_caches(static_cast<Wide2*>(to), value) : void(*static_cast<Wide2*>(to) = value);
}
inline void put_vector(void* to, Wide4 value) {
    STREAM && reinterpret_cast<uintptr_t>(to) % 32 == 0 ? put_past_caches(static_cast<Wide4*>(to), value) : void(*static_cast<Wide4*>(to) = value);
}
#endif

template <typename Wide>
inline void put(void* to, const Wide& bytes) {
#if defined(__AVX2__)
    if constexpr (sizeof(Wide) % 32 == 0) {
        for (unsigned part = 0; part < sizeof(Wide) / 32; ++part) {
            put_vector(static_cast<Wide4*>(to) + part, reinterpret_cast<const Wide4*>(&bytes)[part]);
        }
        return;
    }
#endif
    memcpy(to, &bytes, sizeof(Wide));
}

template <int Items, typename T>
inline void store_pack(T* to, const Pack<T, Items>& pack) { put(to, pack); }

// For lanes that began as single bytes: g++ fills the pack by 16 bytes, and a load of 32 would wait until both are in the cache.
template <int Items, typename T>
inline void store_pieces(T* to, const Pack<T, Items>& pack) {
#if defined(__AVX2__)
    if constexpr (sizeof(pack) % 16 == 0) {
        for (unsigned part = 0; part < sizeof(pack) / 16; ++part) {
            put_vector(reinterpret_cast<Wide2*>(to) + part, reinterpret_cast<const Wide2*>(&pack)[part]);
        }
        return;
    }
#endif
    put(to, pack);
}

template <int Items>
inline void store_pack(_Float16* to, const Pack<float, Items>& pack) {
#if defined(__F16C__) && defined(__AVX2__)
    if constexpr (Items % 8 == 0) {
        using V = Vectors<LANES<Items>>;
        for (int item = 0; item < Items; item += LANES<Items>) {
            put_vector(to + item, (typename V::Stored)to_halves(*reinterpret_cast<const typename V::Floats*>(pack.at + item)));
        }
        return;
    }
#endif
    for (int item = 0; item < Items; ++item) {
        reinterpret_cast<Word*>(to)[item] = static_cast<uint16_t>(float_to_half(pack.at[item]));
    }
}

template <int Items>
inline void store_pack(bfloat16* into, const Pack<float, Items>& pack) {
#if defined(__AVX2__)
    if constexpr (Items % 8 == 0) {
        using V = Vectors<LANES<Items>>;
        using Bits = typename V::Bits;
        for (int item = 0; item < Items; item += LANES<Items>) {  // as to<bfloat16>
            const auto value = *reinterpret_cast<const typename V::Floats*>(pack.at + item);
            const Bits bits = (Bits)value, is_nan = (Bits)(value != value);
            const Bits rounded = bits + 0x7fff + ((bits >> 16) & 1), quiet = bits | 0x400000;
            put_vector(into + item, (typename V::Stored)narrow((Bits)(((is_nan & quiet) | (~is_nan & rounded)) >> 16)));
        }
        return;
    }
#endif
    Pack<bfloat16, Items> narrow;
    for (int item = 0; item < Items; ++item) {
        narrow.at[item] = to<bfloat16>(pack.at[item]);
    }
    put(into, narrow);
}

template <int Items>
inline void store_pack(fp8_e4m3* into, const Pack<float, Items>& pack) {
#if defined(__AVX2__)
    if constexpr (Items % 8 == 0) {
        using V = Vectors<LANES<Items>>;
        using Bits = typename V::Bits;
        using Floats = typename V::Floats;
        for (int item = 0; item < Items; item += LANES<Items>) {  // as to<fp8_e4m3>
            const Floats value = *reinterpret_cast<const Floats*>(pack.at + item);
            const Bits bits = (Bits)value, is_nan = (Bits)(value != value), given = bits & 0x7fffffff;
            const Bits is_large = (Bits)((Floats)given > 448.0f), whole = (is_large & as_bits<uint32_t>(448.0f)) | (~is_large & given);
            const Bits tiny = (Bits)((Floats)whole + 16384.0f) - 0x46800000, is_tiny = (Bits)((Floats)whole < 0x1p-6f);
            const Bits normal = ((whole + 0x7ffff + (whole >> 20 & 1)) >> 20) - (120 << 3), size = (is_tiny & tiny) | (~is_tiny & normal);
            *reinterpret_cast<typename V::Bytes*>(into + item) = narrow_to_bytes((Bits)((bits >> 24 & 0x80) | (is_nan & 0x7f) | (~is_nan & size)));
        }
        return;
    }
#endif
    Pack<fp8_e4m3, Items> narrow;
    for (int item = 0; item < Items; ++item) {
        narrow.at[item] = to<fp8_e4m3>(pack.at[item]);
    }
    put(into, narrow);
}

// The beginning of a row of so many bytes; once it is read, the processor finds the rest of a long one by itself.
template <typename T>
[[maybe_unused]] inline void prefetch_row(const T* from, int64_t bytes) {
    for (int64_t byte = 0; byte < (bytes < 512 ? bytes : 512); byte += 64) {
        __builtin_prefetch(reinterpret_cast<const char*>(from) + byte);
    }
}

// One value of the lanes' partial ones. Each half is an array of its own: g++ keeps it in registers.
template <int Lanes, typename T, typename Join>
inline T join_lanes(const T (&values)[Lanes], Join join) {
    if constexpr (Lanes == 1) {
        return values[0];
    } else {
        T halves[Lanes / 2];
#pragma omp simd
        for (int lane = 0; lane < Lanes / 2; ++lane) {
            halves[lane] = join(values[lane], values[lane + Lanes / 2]);
        }
        return join_lanes(halves, join);
    }
}

// The `Count` largest of a row in falling order, of equal ones the first; NaN above all. What is not above the last of them is passed sixteen at a time.
template <int Count>
inline void row_firsts(const float* values, int64_t length, float (&found)[Count], int64_t (&places)[Count]) {
    const auto above = [](float a, float b) { return b == b && (a > b || a != a); };
    int have = 0;
    for (int64_t first = 0; first < length; first += 16) {
        const int64_t end = first + 16 < length ? first + 16 : length;
        if (have == Count && end - first == 16) {
            const float last = found[Count - 1];
            int any = 0;
#pragma omp simd reduction(| : any)
            for (int lane = 0; lane < 16; ++lane) {
                any |= !(values[first + lane] <= last);
            }
            if (any == 0) {
                continue;
            }
        }
        for (int64_t at = first; at < end; ++at) {
            if (have == Count && !above(values[at], found[Count - 1])) {
                continue;
            }
            have += have < Count;
            int to = have - 1;
            for (; to > 0 && above(values[at], found[to - 1]); --to) {
                found[to] = found[to - 1];
                places[to] = places[to - 1];
            }
            found[to] = values[at];
            places[to] = at;
        }
    }
}

// run(begin, end) over [0, count), in parts side by side where there are `work` elements enough.
template <typename Run>
inline void in_parallel(int64_t count, int64_t work, Run run) {
    (void)work;
#if defined(_OPENMP)
#pragma omp parallel if (work >= PARALLEL_FROM && count > 1)
#endif
    {
#if defined(_OPENMP)
        const int64_t threads = omp_get_num_threads(), thread = omp_get_thread_num();
#else
        const int64_t threads = 1, thread = 0;
#endif
        run(count * thread / threads, count * (thread + 1) / threads);
#if defined(__x86_64__)
        if (STREAM) {
            __builtin_ia32_sfence();
        }
#endif
    }
}

}  // namespace
