"""The definitions that a source over lanes needs: vector types, loads and stores, and the functions it uses."""

from __future__ import annotations

NAMES = frozenset(
    {
        "lanes",
        "LANES",
        "load_lanes",
        "load_every_second",
        "store_lanes",
        "load_words",
        "store_words",
        "store_bytes",
        "first_lanes",
        "splat",
        "kept",
    }
    | {
        "sum_of",
        "doubles",
        "in_doubles",
        "largest_of",
        "smallest_of",
        "exp_lanes",
        "tanh_lanes",
        "erf_lanes",
        "log_lanes",
        "log1p_lanes",
        "sin_lanes",
        "cos_lanes",
        "quarter_turns",
        "within_quarter",
        "sine_or_cosine",
        "or_by_library",
        "has_plain_log",
    }
)
"""Names that a source must leave free."""

_TYPES = """
// Of g++ 12's own header, which makes "any value" out of uninitialised variables.
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"

// Sixteen floats at a time. Absent lanes of a short last step are read as zero and not written.
constexpr int64_t LANES = 16;
typedef float lanes __attribute__((vector_size(64)));

static inline __mmask16 first_lanes(int64_t count) { return static_cast<__mmask16>((1u << count) - 1u); }

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
static inline lanes load_lanes(const {bfloat16}* from, int64_t count) {{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(load_words(from, count)), 16));
}}
"""

_STORE = """
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
static inline void store_lanes({bfloat16}* to, lanes value, int64_t count) {{
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
}}
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

_TANH = """
// tanh x to 2.5 ulp: an odd polynomial near zero, 1 - 2 / (e^2x + 1) elsewhere.
static inline lanes tanh_lanes(lanes x) {
    const lanes size = _mm512_abs_ps(x), square = x * x;
    lanes tail = square * -0.00566078666f + 0.0206020051f;
    tail = tail * square - 0.0537292290f;
    tail = tail * square + 0.133313289f;
    tail = tail * square - 0.333332783f;
    const lanes far = 1.0f - 2.0f / (exp_lanes(2.0f * size) + 1.0f);
    return size < 0.625f ? x + x * square * tail : (x < 0.0f ? -far : far);
}
"""

_ERF = """
// erf x to 2.5 ulp: an odd polynomial up to 1, 1 - e^-p(x) with a polynomial p beyond.
static inline lanes erf_lanes(lanes x) {
    const lanes size = _mm512_min_ps(splat(4.0f), _mm512_abs_ps(x)), square = x * x;  // erf is 1 from 4 on
    lanes near = square * -0.000566015493f + 0.00492478931f;
    near = near * square - 0.0267177071f;
    near = near * square + 0.112804116f;
    near = near * square - 0.376123557f;
    near = near * square + 1.12837913f;
    lanes decay = size * -0.000185573867f + 0.00293960590f;
    decay = decay * size - 0.0218053128f;
    decay = decay * size + 0.103037358f;
    decay = decay * size + 0.638225690f;
    decay = decay * size + 1.12704003f;
    decay = decay * size + 0.000353721084f;
    const lanes far = 1.0f - exp_lanes(-decay);
    return size <= 1.0f ? near * x : (x < 0.0f ? -far : far);
}
"""

_LOG = """
// ln x to 1.5 ulp: x = 2^n (1 + f) with 1 + f between sqrt(1/2) and sqrt(2), a polynomial for ln(1 + f).
static inline __mmask16 has_plain_log(lanes x) {  // a positive number, not infinite
    const __m512i from_one = _mm512_sub_epi32(_mm512_castps_si512(x), _mm512_set1_epi32(1));
    return _mm512_cmplt_epu32_mask(from_one, _mm512_set1_epi32(0x7f7fffff));
}

static inline lanes log_lanes(lanes x) {
    const __mmask16 subnormal = _mm512_cmp_ps_mask(x, _mm512_set1_ps(1.17549435e-38f), _CMP_LT_OQ);
    const lanes normal = _mm512_mask_mul_ps(x, subnormal, x, _mm512_set1_ps(8388608.0f));
    const __m512i half = _mm512_set1_epi32(0x3f3504f3);  // sqrt(1/2)
    const __m512i from_half = _mm512_sub_epi32(_mm512_castps_si512(normal), half);
    const __m512i exponent = _mm512_srai_epi32(from_half, 23);
    const lanes n = _mm512_cvtepi32_ps(_mm512_mask_sub_epi32(exponent, subnormal, exponent, _mm512_set1_epi32(23)));
    const __m512i mantissa = _mm512_and_si512(from_half, _mm512_set1_epi32(0x007fffff));
    const lanes f = (lanes)_mm512_castsi512_ps(_mm512_add_epi32(mantissa, half)) - 1.0f;
    lanes tail = f * -0.0763451966f + 0.127615696f;
    tail = tail * f - 0.131601708f;
    tail = tail * f + 0.142017588f;
    tail = tail * f - 0.166233586f;
    tail = tail * f + 0.200012269f;
    tail = tail * f - 0.250008210f;
    tail = tail * f + 0.333333317f;
    const lanes square = f * f;
    const lanes small = tail * f * square + n * -2.12194440e-4f - 0.5f * square;
    const lanes inside = (f + small) + n * 0.693359375f;
    const lanes ends = x == 0.0f ? splat(-INFINITY) : (x > 0.0f ? x : splat(NAN));
    return _mm512_mask_mov_ps(ends, has_plain_log(x), inside);
}
"""

_LOG1P = """
// ln(1 + x): the rounding of 1 + x is put back by its first-order term.
static inline lanes log1p_lanes(lanes x) {
    const lanes sum = 1.0f + x;
    const lanes lost = x - (sum - 1.0f);
    const lanes log_sum = log_lanes(sum);
    return _mm512_mask_mov_ps(log_sum, has_plain_log(sum), log_sum + lost / sum);
}
"""

_SIN_COS = """
// sin x and cos x to 1.6 ulp: x = n pi / 2 + r, a polynomial for either of the two. Beyond 2^18, where n would no longer be
// exact, and for infinities and NaN each lane asks the library.
static inline lanes quarter_turns(lanes x) { return _mm512_roundscale_ps(x * 0.636619747f, 0); }

static inline lanes within_quarter(lanes x, lanes n) {
    const lanes r = ((x - n * 1.57079637f) - n * -4.37113883e-8f) - n * -1.71512451e-15f;
    return _mm512_mask_mov_ps(r, _mm512_cmp_ps_mask(n, _mm512_setzero_ps(), _CMP_EQ_OQ), x);  // -0 keeps its sign
}

static inline lanes sine_or_cosine(lanes r, __m512i quarter) {
    const lanes square = r * r;
    lanes odd = square * -1.95152959e-4f + 8.33216087e-3f;
    odd = odd * square - 0.166666546f;
    lanes even = square * 2.44331571e-5f - 1.38873163e-3f;
    even = even * square + 4.16666457e-2f;
    const lanes sine = r + r * square * odd, cosine = (1.0f - 0.5f * square) + square * square * even;
    const __mmask16 turned = _mm512_test_epi32_mask(quarter, _mm512_set1_epi32(1));
    const __mmask16 negative = _mm512_test_epi32_mask(quarter, _mm512_set1_epi32(2));
    const lanes value = _mm512_mask_mov_ps(sine, turned, cosine);
    return _mm512_mask_sub_ps(value, negative, _mm512_set1_ps(-0.0f), value);
}

static inline lanes or_by_library(lanes near, lanes x, float (*function)(float)) {
    const __mmask16 far = _mm512_cmp_ps_mask(_mm512_abs_ps(x), _mm512_set1_ps(262144.0f), _CMP_NLE_UQ);
    if (__builtin_expect(far != 0, 0)) {
        for (int64_t lane = 0; lane < LANES; ++lane) {
            if (far >> lane & 1) {
                near[lane] = function(x[lane]);
            }
        }
    }
    return near;
}

static inline lanes sin_lanes(lanes x) {
    const lanes n = quarter_turns(x);
    return or_by_library(sine_or_cosine(within_quarter(x, n), _mm512_cvtps_epi32(n)), x, sinf);
}

static inline lanes cos_lanes(lanes x) {
    const lanes n = quarter_turns(x);
    const __m512i quarter = _mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(1));
    return or_by_library(sine_or_cosine(within_quarter(x, n), quarter), x, cosf);
}
"""


def _simple(name: str, body: str, parameters: str = "lanes x") -> str:
    return f"static inline lanes {name}({parameters}) {{ return {body}; }}"


def _across(name: str, combined: str) -> str:
    """A reduction of the lanes, half of them at a time."""
    return f"""\
static inline float {name}(lanes value) {{
    alignas(64) float part[LANES];
    _mm512_store_ps(part, value);
    for (int64_t step = LANES / 2; step > 0; step /= 2) {{
        for (int64_t lane = 0; lane < step; ++lane) {{
            part[lane] = {combined};
        }}
    }}
    return part[0];
}}"""


_SIMPLE = {
    "sqrt_lanes": _simple("sqrt_lanes", "_mm512_sqrt_ps(x)"),
    "abs_lanes": _simple("abs_lanes", "_mm512_abs_ps(x)"),
    "rint_lanes": _simple("rint_lanes", "_mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)"),
    "floor_lanes": _simple("floor_lanes", "_mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)"),
    "ceil_lanes": _simple("ceil_lanes", "_mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)"),
    # The second operand where one of the two is a NaN.
    "max_lanes": _simple("max_lanes", "_mm512_max_ps(a, b)", "lanes a, lanes b"),
    "min_lanes": _simple("min_lanes", "_mm512_min_ps(a, b)", "lanes a, lanes b"),
    # As fmaxf and fminf: the other one where one is a NaN.
    "max_number_lanes": _simple(
        "max_number_lanes",
        "_mm512_mask_mov_ps(_mm512_max_ps(a, b), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), a)",
        "lanes a, lanes b",
    ),
    "min_number_lanes": _simple(
        "min_number_lanes",
        "_mm512_mask_mov_ps(_mm512_min_ps(a, b), _mm512_cmp_ps_mask(b, b, _CMP_UNORD_Q), a)",
        "lanes a, lanes b",
    ),
    "clamp_lanes": _simple(
        "clamp_lanes", "_mm512_min_ps(high, _mm512_max_ps(low, x))", "lanes x, lanes low, lanes high"
    ),
    "fma_lanes": _simple("fma_lanes", "_mm512_fmadd_ps(a, b, c)", "lanes a, lanes b, lanes c"),
    "trunc_lanes": _simple("trunc_lanes", "_mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC)"),
    "round_lanes": """\
// To nearest, halves away from zero.
static inline lanes round_lanes(lanes x) {
    const lanes whole = _mm512_roundscale_ps(x, _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC);
    const lanes next = whole + (x < 0.0f ? splat(-1.0f) : splat(1.0f));
    return _mm512_abs_ps(x - whole) >= 0.5f ? next : whole;
}""",
    "kept": """\
static inline lanes kept(lanes value, int64_t count, float otherwise) {
    return count == LANES ? value : _mm512_mask_mov_ps(splat(otherwise), first_lanes(count), value);
}""",
    "sum_of_doubles": """\
// Of a sum in double: eight of them, each for two of the lanes.
typedef double doubles __attribute__((vector_size(64)));

static inline doubles in_doubles(lanes value) {
    const doubles low = _mm512_cvtps_pd(_mm512_castps512_ps256(value));
    return low + (doubles)_mm512_cvtps_pd(_mm512_extractf32x8_ps(value, 1));
}

static inline double sum_of(doubles value) { return _mm512_reduce_add_pd(value); }""",
    "sum": _across("sum_of", "part[lane] + part[lane + step]"),
    "largest": _across("largest_of", "part[lane] > part[lane + step] ? part[lane] : part[lane + step]"),
    "smallest": _across("smallest_of", "part[lane] < part[lane + step] ? part[lane] : part[lane + step]"),
}


FUNCTIONS = frozenset(
    {
        *(name for name in _SIMPLE if name.endswith("_lanes")),
        "exp_lanes",
        "log_lanes",
        "log1p_lanes",
        "tanh_lanes",
        "erf_lanes",
        "sin_lanes",
        "cos_lanes",
        "load_lanes",
        "store_lanes",
        "first_lanes",
        "in_doubles",
    }
)
"""Names that end like those of vectors."""


_LOAD_EVERY_SECOND = """
// from[0], from[2], and so on; nothing behind the last of them is read.
static inline lanes load_every_second(const float* from, int64_t count) {
    const __m512i even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    const uint32_t present = static_cast<uint32_t>((uint64_t{1} << (2 * count - 1)) - 1u);
    const lanes low = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present), from);
    const lanes high = _mm512_maskz_loadu_ps(static_cast<__mmask16>(present >> 16), from + LANES);
    return _mm512_permutex2var_ps(low, even, high);
}
"""

_LOAD_BYTES = """
static inline lanes load_lanes(const {kind}* from, int64_t count) {{
    const __m128i bytes = count == LANES ? _mm_loadu_si128(reinterpret_cast<const __m128i*>(from))
                                         : _mm_maskz_loadu_epi8(first_lanes(count), from);
    return _mm512_cvtepi32_ps(_mm512_cvtep{sign}8_epi32(bytes));
}}
"""


def text(used: set[str], bfloat16: str, known: str) -> str:
    """The definitions for what is used and not `known` yet; `bfloat16` is the file's own type of that name, or ""."""
    parts = [_TYPES]
    if bfloat16:
        parts.append(_LOAD_BFLOAT16.format(bfloat16=bfloat16))
    if "load_every_second" in used:
        parts.append(_LOAD_EVERY_SECOND)
    for kind, sign in (("int8_t", "i"), ("uint8_t", "u")):
        if f"load_{kind}" in used:
            parts.append(_LOAD_BYTES.format(kind=kind, sign=sign))
    if "store" in used:
        parts.append(_STORE)
        if bfloat16:
            parts.append(_STORE_BFLOAT16.format(bfloat16=bfloat16))
    if "store_bytes" in used:
        parts.append(_STORE_BYTES)
    built_on_exp = used & {"exp_lanes", "tanh_lanes", "erf_lanes"}
    if used & {"splat", "kept", "round_lanes", "log_lanes", "log1p_lanes"} or built_on_exp:
        parts.append("\nstatic inline lanes splat(float value) { return _mm512_set1_ps(value); }\n")
    if built_on_exp:
        parts.append(_EXP)
    parts.extend(part for name, part in (("tanh_lanes", _TANH), ("erf_lanes", _ERF)) if name in used)
    if used & {"log_lanes", "log1p_lanes"}:
        parts.append(_LOG)
    if "log1p_lanes" in used:
        parts.append(_LOG1P)
    if used & {"sin_lanes", "cos_lanes"}:
        parts.append(_SIN_COS)
    simple = [line for name, line in _SIMPLE.items() if name in used and line not in known]
    if simple:
        parts.append("\n" + "\n".join(simple) + "\n")
    return "".join(part for part in parts if part not in known)


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


def streams() -> str:
    """A store that may go past the caches, to stand behind the other forms of store_lanes."""
    return _STREAM
