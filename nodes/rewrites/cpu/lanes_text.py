"""The C++ over sixteen lanes that a source brings along: vector types, loads and stores, and the functions that it uses."""

from __future__ import annotations

import re

from nodes.rewrites.cpu.vector_math import VECTOR_FUNCTIONS

_FIRST = """
// Of g++ 12's own header, which makes "any value" out of uninitialised variables.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// Sixteen floats at a time. Absent lanes of a short last step are read as zero and not written.
constexpr int64_t LANES = 16;
typedef float lanes __attribute__((vector_size(64)));

static inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

static inline lanes splat(float value) { return _mm512_set1_ps(value); }
"""
_LOADS = """
static inline lanes load_lanes(const float* from, int64_t count) {
    return count == LANES ? _mm512_loadu_ps(from) : _mm512_maskz_loadu_ps(first_lanes(count), from);
}

static inline __m256i load_words(const void* from, int64_t count) {
    return count == LANES ? _mm256_loadu_si256(static_cast<const __m256i*>(from))
                          : _mm256_maskz_loadu_epi16(first_lanes(count), from);
}

static inline lanes load_lanes(const _Float16* from, int64_t count) { return _mm512_cvtph_ps(load_words(from, count)); }
"""
_LOAD_BFLOAT16 = """
static inline lanes load_lanes(const BFLOAT16* from, int64_t count) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(from, count)), 16));
}
"""
_STORES = """
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
"""
_STORE_BFLOAT16 = """
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
"""
_STORE_BYTES = """
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
"""
_EXP = """
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
"""
_SHORT = """
static inline lanes sqrt_lanes(lanes x) { return _mm512_sqrt_ps(x); }
static inline lanes abs_lanes(lanes x) { return _mm512_abs_ps(x); }
static inline lanes rint_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
static inline lanes floor_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC); }
static inline lanes ceil_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC); }
static inline lanes trunc_lanes(lanes x) { return _mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC); }
// As std::max and std::min: the first of two zeros, and where one is a NaN.
static inline lanes max_lanes(lanes a, lanes b) { return _mm512_max_ps(b, a); }
static inline lanes min_lanes(lanes a, lanes b) { return _mm512_min_ps(b, a); }
static inline lanes clamp_lanes(lanes x, lanes low, lanes high) { return min_lanes(max_lanes(x, low), high); }
// As fmaxf and fminf: the other one where one is a NaN.
static inline lanes max_number_lanes(lanes a, lanes b) { return _mm512_mask_mov_ps(max_lanes(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), a); }
static inline lanes min_number_lanes(lanes a, lanes b) { return _mm512_mask_mov_ps(min_lanes(b, a), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), a); }
"""
_ROUND = """
// To nearest, halves away from zero.
static inline lanes round_lanes(lanes x) {
    const lanes whole = trunc_lanes(x);
    const lanes next = whole + (x < 0.0f ? splat(-1.0f) : splat(1.0f));
    return abs_lanes(x - whole) >= 0.5f ? next : whole;
}
"""
_KEPT = """
static inline lanes kept(lanes value, int64_t count, float otherwise) {
    return count == LANES ? value : _mm512_mask_mov_ps(splat(otherwise), first_lanes(count), value);
}
"""
_DOUBLES = """
// Of a sum in double: eight of them, each for two of the lanes.
typedef double doubles __attribute__((vector_size(64)));

static inline doubles in_doubles(lanes value) {
    const doubles low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
    return low + (doubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
}

static inline double sum_of_doubles(doubles value) { return _mm512_reduce_add_pd(value); }
"""
_ACROSS = """
static inline float sum_of(lanes value) { return _mm512_reduce_add_ps(value); }
static inline float largest_of(lanes value) { return _mm512_reduce_max_ps(value); }
static inline float smallest_of(lanes value) { return _mm512_reduce_min_ps(value); }
"""
_BY_LIBRARY = """
static inline lanes {name}_lanes({parameters}) {{
#pragma omp simd simdlen(16)
    for (int64_t lane = 0; lane < LANES; ++lane) {{
        x[lane] = {name}f({arguments});
    }}
    return x;
}}
"""
_STREAM = """
// Past the caches where the output is larger than they are, so that its lines are not read first. The barrier that ends
// a parallel region orders these stores before whatever follows.
template <typename T>
static inline void store_lanes(T* to, lanes value, int64_t count, bool streams) {
    const bool whole = count == LANES && reinterpret_cast<uintptr_t>(to) % (LANES * sizeof(T)) == 0;
    if (!streams || !whole) {
        store_lanes(to, value, count);
    } else if constexpr (sizeof(T) == sizeof(float)) {
        _mm512_stream_ps(reinterpret_cast<float*>(to), value);
    } else {
        alignas(LANES * sizeof(T)) T packed[LANES];
        store_lanes(packed, value, LANES);
        if constexpr (sizeof(T) == 2) {
            _mm256_stream_si256(reinterpret_cast<__m256i*>(to), *reinterpret_cast<const __m256i*>(packed));
        } else {
            _mm_stream_si128(reinterpret_cast<__m128i*>(to), *reinterpret_cast<const __m128i*>(packed));
        }
    }
}
"""


def _library(name: str, arguments: int) -> str:
    """A function of the C library over lanes: g++ takes the library's own for vectors where vector_math declares that."""
    names = ("x", "y")[:arguments]
    return _BY_LIBRARY.format(
        name=name,
        parameters=", ".join(f"lanes {each}" for each in names),
        arguments=", ".join(f"{each}[lane]" for each in names),
    )


def _lines(text: str) -> list[str]:
    """Functions of one line each, with the comment above them."""
    return re.findall(r"(?:^//.*\n)?^static.*\n", text, re.MULTILINE)


_BLOCKS = (
    _LOADS, _LOAD_BFLOAT16, _STORES, _STORE_BFLOAT16, _STORE_BYTES, _EXP,
    *_lines(_SHORT), _ROUND, _KEPT, _DOUBLES, *_lines(_ACROSS),
    *(_library(name.removesuffix("f"), arguments) for name, arguments in VECTOR_FUNCTIONS.items() if name != "expf"),
)  # fmt: skip
"""In order, each after what it is made of."""
_DEFINED = re.compile(r"^(?:static inline|typedef|constexpr) .*?(\w+)(?:\(| =| __attribute__)", re.MULTILINE)
_WORD = re.compile(r"\w+")
NAMES = frozenset(name for block in (_FIRST, *_BLOCKS) for name in _DEFINED.findall(block))
"""Names that a source must leave free."""


def text(wanted: str, bfloat16: str) -> str:
    """The definitions of what a source names and does not define yet; `bfloat16` is its own type of that name, or ""."""
    used, parts = set(_WORD.findall(wanted)), []
    for block in reversed(_BLOCKS):
        of_bytes = block == _STORE_BYTES and not used & {"int8_t", "uint8_t"}
        if not of_bytes and (bfloat16 or "BFLOAT16" not in block) and used & set(_DEFINED.findall(block)):
            used |= set(_WORD.findall(block))
            parts.append(block.replace("BFLOAT16", bfloat16))
    return "".join(part for part in (_FIRST, *reversed(parts)) if part.strip() not in wanted)


def streams() -> str:
    """A store that may go past the caches, to stand behind the other forms of store_lanes."""
    return _STREAM
