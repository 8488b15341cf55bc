#pragma once
#include <cstdint>
#include <immintrin.h>

// Of g++ 12's own header, which makes "any value" out of uninitialised variables.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// Sixteen floats at a time. Absent lanes of a short last step are read as zero and not written.
constexpr int64_t LANES = 16;
typedef float lanes __attribute__((vector_size(64)));

static inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

static inline lanes splat(float value) { return _mm512_set1_ps(value); }


static inline lanes load_lanes(const float* from, int64_t count) {
    return count == LANES ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(first_lanes(count), from);
}

static inline __m256i load_words(const void* from, int64_t count) {
    return count == LANES ? _mm256_loadu_si256(static_cast<const __m256i*>(from))
                          : _mm256_maskz_loadu_epi16(first_lanes(count), from);
}

static inline lanes load_lanes(const _Float16* from, int64_t count) { return _mm512_cvtph_ps(load_words(from, count)); }


static inline lanes load_lanes(const BFLOAT16* from, int64_t count) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(from, count)), 16));
}


static inline void store_lanes(float* to, lanes value, int64_t count) {
    if (count == LANES) {
        _mm512_storeu_ps(to, value);
    } else {
        _mm512_mask_storeu_ps(to, first_lanes(count), value);
    }
}

static inline void store_words(void* to, __m256i words, int64_t count) {
    if (count == LANES) {
        _mm256_storeu_si256(static_cast<__m256i*>(to), words);
    } else {
        _mm256_mask_storeu_epi16(to, first_lanes(count), words);
    }
}

static inline void store_lanes(_Float16* to, lanes value, int64_t count) {
    store_words(to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC), count);
}


// To nearest, ties to even; a NaN stays one.
static inline void store_lanes(BFLOAT16* to, lanes value, int64_t count) {
#ifdef __AVX512BF16__
    const __m256bh words = _mm512_cvtneps_pbh(value);  // flushes results below 2^-126
    store_words(to, reinterpret_cast<const __m256i&>(words), count);
#else
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __m512i quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x00400000));
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    const __m512i chosen = _mm512_mask_mov_epi32(rounded, is_nan, quiet);
    store_words(to, _mm512_cvtepi32_epi16(_mm512_srli_epi32(chosen, 16)), count);
#endif
}


// Towards zero and modulo 256, as g++ casts.
static inline void store_bytes(void* to, lanes value, int64_t count) {
    const __m128i bytes = _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(value));
    if (count == LANES) {
        _mm_storeu_si128(static_cast<__m128i*>(to), bytes);
    } else {
        _mm_mask_storeu_epi8(to, first_lanes(count), bytes);
    }
}

static inline void store_lanes(int8_t* to, lanes value, int64_t count) { store_bytes(to, value, count); }
static inline void store_lanes(uint8_t* to, lanes value, int64_t count) { store_bytes(to, value, count); }


// e^x to 1.1 ulp: x = n ln 2 + r with n in sixteenths, 2^n by a table of its fraction and by scaling, a short polynomial
// for e^r. Out of range n saturates the scaling and r, then meaningless, is cut off; a NaN comes through n.
static inline lanes exp_lanes(lanes x) {
    const lanes sixteenths = {  // 2^(k / 16)
        1.0f, 1.04427378f, 1.09050773f, 1.13878863f, 1.18920712f, 1.24185781f, 1.29683955f, 1.35425555f,
        1.41421356f, 1.47682615f, 1.54221083f, 1.61049033f, 1.68179283f, 1.75625216f, 1.83400809f, 1.91520656f};
    const lanes shifted = x * 1.44269504f + 786432.0f;  // 1.5 * 2^19: its last bit is worth 1 / 16
    const lanes n = shifted - 786432.0f;
    const lanes r = _mm512_range_ps((x - n * 0.693145752f) - n * 1.42860677e-6f, splat(0.03125f), 2);  // nearer to zero
    lanes tail = r * 0.166666667f + 0.5f;
    tail = tail * r + 1.0f;
    const lanes fraction = _mm512_permutexvar_ps(_mm512_castps_si512(shifted), sixteenths);
    return _mm512_scalef_ps(fraction + fraction * (tail * r), n);
}


static inline lanes sqrt_lanes(lanes x) { return _mm512_sqrt_ps(x); }
static inline lanes abs_lanes(lanes x) { return _mm512_abs_ps(x); }
static inline lanes rint_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline lanes floor_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
static inline lanes ceil_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
static inline lanes trunc_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
// As std::max and std::min: the first of two zeros, and where one is a NaN.
static inline lanes max_lanes(lanes a, lanes b) { return _mm512_max_ps(b, a); }
static inline lanes min_lanes(lanes a, lanes b) { return _mm512_min_ps(b, a); }
// As fmaxf and fminf: the other one where one is a NaN.
static inline lanes max_number_lanes(lanes a, lanes b) { return _mm512_mask_mov_ps(max_lanes(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), a); }
static inline lanes min_number_lanes(lanes a, lanes b) { return _mm512_mask_mov_ps(min_lanes(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), a); }


static inline lanes kept(lanes value, int64_t count, float otherwise) {
    return count == LANES ? value : _mm512_mask_mov_ps(splat(otherwise), first_lanes(count), value);
}


// Of a sum in double: eight of them, each for two of the lanes.
typedef double doubles __attribute__((vector_size(64)));

static inline doubles in_doubles(lanes value) {
    const doubles low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
    return low + (doubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
}

static inline double sum_of_doubles(doubles value) { return _mm512_reduce_add_pd(value); }


static inline float sum_of(lanes value) { return _mm512_reduce_add_ps(value); }
static inline float largest_of(lanes value) { return _mm512_reduce_max_ps(value); }
static inline float smallest_of(lanes value) { return _mm512_reduce_min_ps(value); }
