"""The small functions that generated kernels call, as text: only what a source uses is put into it."""

from __future__ import annotations

import re

from . import block_groups, halves, hopper, kept, planes, recurrences, tensor_cores, thin_tiles

CUDA_INCLUDES = "#include <math.h>\n#include <stdint.h>\n"
CUDA_HALVES = {"__nv_bfloat16": "#include <cuda_bf16.h>\n", "__half": "#include <cuda_fp16.h>\n"}
CPP_INCLUDES = "#include <cmath>\n#include <cstdint>\n#include <cstring>\n"
CPP_OPTIONS = """\
// No one looks at floating-point exceptions, and choices are vectorised only where none can be raised.
#pragma GCC optimize("no-trapping-math")
"""

_PIECES = {
    "maximum": """\
// NaN wins, as in torch.
template <typename T>
{device} T maximum(T a, T b) {{
    const T larger_one = a > b ? a : b;
    return a != a ? a : larger_one;
}}
""",
    "minimum": """\
template <typename T>
{device} T minimum(T a, T b) {{
    const T smaller_one = a < b ? a : b;
    return a != a ? a : smaller_one;
}}
""",
    "Pack": """\
// Neighbouring elements, loaded and stored at once.
template <typename T, int Items>
struct alignas(sizeof(T) * Items) Pack {{
    T at[Items];
}};

template <int Items, typename T>
{device} Pack<T, Items> load_pack(const T* from) {{
    return *reinterpret_cast<const Pack<T, Items>*>(from);
}}

template <int Items, typename T>
{device} void store_pack(T* to, const Pack<T, Items>& pack) {{
    *reinterpret_cast<Pack<T, Items>*>(to) = pack;
}}
""",
    "Place": """\
// A value and where it is; of equal ones the first counts, and NaN above all.
template <typename T>
struct Place {{
    T value;
    int64_t index;
}};

template <typename T>
{device} Place<T> larger(Place<T> a, Place<T> b) {{
    const bool both = a.value == b.value || (a.value != a.value && b.value != b.value);
    const bool first = both ? a.index < b.index : a.value > b.value || a.value != a.value;
    return first ? a : b;
}}

template <typename T>
{device} Place<T> smaller(Place<T> a, Place<T> b) {{
    const bool both = a.value == b.value || (a.value != a.value && b.value != b.value);
    const bool first = both ? a.index < b.index : a.value < b.value || a.value != a.value;
    return first ? a : b;
}}

// The same, where a thread goes through its elements in their order.
template <typename T>
{device} Place<T> larger_behind(Place<T> seen, T value, int64_t index) {{
    return !(value <= seen.value) && seen.value == seen.value ? Place<T>{{value, index}} : seen;
}}

template <typename T>
{device} Place<T> smaller_behind(Place<T> seen, T value, int64_t index) {{
    return !(value >= seen.value) && seen.value == seen.value ? Place<T>{{value, index}} : seen;
}}
""",
    "Moments": """\
// Mean, sum of squared deviations from it, count: Welford's recurrence, parts joined by Chan's formula.
template <typename T>
struct Moments {{
    T mean, squares, count;
}};

template <typename T>
{device} Moments<T> with(Moments<T> seen, T value) {{
    const T count = seen.count + T(1);
    const T apart = value - seen.mean;
    const T mean = seen.mean + {divided};
    return {{mean, seen.squares + apart * (value - mean), count}};
}}

template <typename T>
{device} Moments<T> joined(Moments<T> a, Moments<T> b) {{
    const T count = a.count + b.count;
    if (count == T(0)) {{
        return a;
    }}
    const T apart = b.mean - a.mean;
    const T share = b.count / count;
    return {{a.mean + apart * share, a.squares + b.squares + apart * apart * a.count * share, count}};
}}
""",
    "Shifted": """\
// The maximum and the sum of exponentials shifted by it.
template <typename T>
struct Shifted {{
    T highest, total;
}};

template <typename T>
{device} Shifted<T> with(Shifted<T> seen, T value) {{
    if (value > seen.highest) {{
        return {{value, seen.total * {exp}(seen.highest - value) + T(1)}};
    }}
    return value == -INFINITY ? seen : Shifted<T>{{seen.highest, seen.total + {exp}(value - seen.highest)}};
}}

template <typename T>
{device} Shifted<T> joined(Shifted<T> a, Shifted<T> b) {{
    if (a.highest < b.highest) {{
        const Shifted<T> swapped = a;
        a = b;
        b = swapped;
    }}
    return b.highest == -INFINITY ? a : Shifted<T>{{a.highest, a.total + b.total * {exp}(b.highest - a.highest)}};
}}
""",
}
_HALVES = {
    "cuda": {
        "float16": """\
__device__ __forceinline__ float to_float(__half value) {{ return __half2float(value); }}
__device__ __forceinline__ void store(__half* to, float value) {{ *to = __float2half(value); }}
__device__ __forceinline__ float round_to_float16(float value) {{ return __half2float(__float2half(value)); }}
""",
        "bfloat16": """\
__device__ __forceinline__ float to_float(__nv_bfloat16 value) {{ return __bfloat162float(value); }}
__device__ __forceinline__ void store(__nv_bfloat16* to, float value) {{ *to = __float2bfloat16(value); }}
__device__ __forceinline__ float round_to_bfloat16(float value) {{ return __bfloat162float(__float2bfloat16(value)); }}
""",
    },
    "cpu": {
        "float16": """\
static inline float to_float(_Float16 value) {{ return static_cast<float>(value); }}
static inline void store(_Float16* to, float value) {{ *to = static_cast<_Float16>(value); }}
static inline float round_to_float16(float value) {{ return static_cast<float>(static_cast<_Float16>(value)); }}
""",
        "bfloat16": """\
struct bfloat16 {{
    uint16_t bits;
}};

static inline float to_float(bfloat16 value) {{
    const uint32_t bits = static_cast<uint32_t>(value.bits) << 16;
    float wide;
    std::memcpy(&wide, &bits, sizeof(wide));
    return wide;
}}

static inline void store(bfloat16* to, float value) {{
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    // Round to nearest even; a NaN keeps its upper half, made quiet.
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    to->bits = static_cast<uint16_t>(value != value ? (bits >> 16) | 0x40u : rounded);
}}

static inline float round_to_bfloat16(float value) {{
    bfloat16 narrow;
    store(&narrow, value);
    return to_float(narrow);
}}
""",
    },
}
_ROUND = {
    "int8": "static_cast<int8_t>", "uint8": "static_cast<uint8_t>", "int16": "static_cast<int16_t>",
}  # fmt: skip
_QUOTIENT = """\
// Two units in the last place of a step of the recurrence, which is small beside the mean: a division costs more than all the rest.
__device__ __forceinline__ float quotient(float a, float b) {
    return __fdividef(a, b);
}

__device__ __forceinline__ double quotient(double a, double b) {
    return a / b;
}
"""
_SHUFFLES = {
    "Place": """\
template <typename T>
__device__ Place<T> across(Place<T> mine, int step) {{
    return {{across(mine.value, step), across(mine.index, step)}};
}}
""",
    "Moments": """\
template <typename T>
__device__ Moments<T> across(Moments<T> mine, int step) {{
    return {{across(mine.mean, step), across(mine.squares, step), across(mine.count, step)}};
}}
""",
    "Shifted": """\
template <typename T>
__device__ Shifted<T> across(Shifted<T> mine, int step) {{
    return {{across(mine.highest, step), across(mine.total, step)}};
}}
""",
}
_ACROSS = """\
// The value of the lane whose number differs in the bit `step`.
template <typename T>
__device__ T across(T mine, int step) {{
    return __shfl_xor_sync(0xffffffffu, mine, step);
}}
"""
_WARP_FOLD = """\
template <typename T, typename Join>
__device__ T warp_fold(T value, Join join) {{
    for (int step = 16; step > 0; step /= 2) {{
        value = join(value, across(value, step));
    }}
    return value;
}}
"""
_BLOCK_FOLD = """\
// Every thread of the block gets the fold of all their values. The block is of whole warps.
template <typename T, typename Join>
__device__ T block_fold(T value, T identity, Join join) {{
    __shared__ T partial[32];
    const int lane = threadIdx.x % 32;
    value = warp_fold(value, join);
    __syncthreads();  // the fold before this one has been read
    if (lane == 0) {{
        partial[threadIdx.x / 32] = value;
    }}
    __syncthreads();
    return warp_fold(lane < blockDim.x / 32 ? partial[lane] : identity, join);
}}
"""
_COLUMN_FOLD = """\
// Every thread of a column of the block gets the fold of their values.
template <typename T, typename Join>
__device__ T column_fold(T value, Join join) {{
    __shared__ T partial[256];
    const int mine = threadIdx.y * blockDim.x + threadIdx.x;
    __syncthreads();  // the fold before this one has been read
    partial[mine] = value;
    __syncthreads();
    value = partial[threadIdx.x];
    for (int other = 1; other < blockDim.y; ++other) {{
        value = join(value, partial[other * blockDim.x + threadIdx.x]);
    }}
    return value;
}}
"""
_WORDS = """\
// A pack as it arrives. Its bytes are taken apart where they are used: whoever does that earlier waits for them.
template <int Bytes> struct WordOf;
template <> struct WordOf<1> {{ using type = unsigned char; }};
template <> struct WordOf<2> {{ using type = unsigned short; }};
template <> struct WordOf<4> {{ using type = unsigned; }};
template <> struct WordOf<8> {{ using type = uint2; }};
template <> struct WordOf<16> {{ using type = uint4; }};
template <typename Packed>
using Word = typename WordOf<sizeof(Packed)>::type;

template <typename Packed, typename T>
__device__ __forceinline__ Word<Packed> load_word(const T* from) {{
    return *reinterpret_cast<const Word<Packed>*>(from);
}}

template <typename Packed>
__device__ __forceinline__ Packed as_pack(Word<Packed> word) {{
    Packed found;
    __builtin_memcpy(&found, &word, sizeof(found));
    return found;
}}
"""
_BLOCK_SCAN = """\
// Each value becomes the fold of those before it, all threads' first values before their second ones; `total` that of the whole block.
template <int Parts, typename T, typename Join>
__device__ __forceinline__ void block_scan(T (&value)[Parts], T identity, T* total, Join join) {{
    __shared__ T partial[32 * Parts];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    #pragma unroll
    for (int step = 1; step < 32; step *= 2) {{
        #pragma unroll
        for (int part = 0; part < Parts; ++part) {{
            const T before = __shfl_up_sync(0xffffffffu, value[part], step);
            value[part] = lane >= step ? join(before, value[part]) : value[part];
        }}
    }}
    __syncthreads();  // the scan before this one has been read
    if (lane == 31) {{
        #pragma unroll
        for (int part = 0; part < Parts; ++part) {{
            partial[part * warps + warp] = value[part];
        }}
    }}
    __syncthreads();
    T others[Parts], running = identity;
    #pragma unroll
    for (int part = 0; part < Parts; ++part) {{
        others[part] = identity;
    }}
    for (int start = 0; start < warps * Parts; start += 32) {{  // once, with 32 warps' parts or fewer
        T here = start + lane < warps * Parts ? partial[start + lane] : identity;
        #pragma unroll
        for (int step = 1; step < 32; step *= 2) {{
            const T before = __shfl_up_sync(0xffffffffu, here, step);
            here = lane >= step ? join(before, here) : here;
        }}
        #pragma unroll
        for (int part = 0; part < Parts; ++part) {{
            const int place = part * warps + warp - 1 - start;
            const T before = __shfl_sync(0xffffffffu, here, place & 31);
            others[part] = place >= 0 && place < 32 ? join(running, before) : others[part];
        }}
        running = join(running, __shfl_sync(0xffffffffu, here, 31));
    }}
    *total = running;
    #pragma unroll
    for (int part = 0; part < Parts; ++part) {{
        const T left = __shfl_up_sync(0xffffffffu, value[part], 1);
        value[part] = lane > 0 ? join(others[part], left) : others[part];
    }}
}}
"""


_TF32 = """\
// To the 11 significant bits of TF32, to the nearest, of two as near to the even one.
__device__ __forceinline__ float round_to_tf32_even(float value) {
    const uint32_t bits = __float_as_uint(value);
    return (bits & 0x7f800000u) == 0x7f800000u ? value : __uint_as_float((bits + 0xfff + (bits >> 13 & 1)) & ~0x1fffu);
}
"""


def prelude(device: str, body: str) -> str:
    """Includes and every function that `body` calls."""
    qualifier = "__device__ __forceinline__" if device == "cuda" else "static inline"
    found = []
    for name, text in _HALVES[device].items():
        word = {"float16": "__half" if device == "cuda" else "_Float16"}.get(name, "bfloat16")
        if word in body or f"round_to_{name}" in body:
            found.append(text.format())
    for name, cast in _ROUND.items():
        if f"round_to_{name}(" in body:
            found.append(
                f"template <typename T>\n{qualifier} int32_t round_to_{name}(T value) {{ return {cast}(value); }}\n"
            )
    pieces = [name for name in _PIECES if re.search(rf"\b{name}\b", body)]
    words = (
        {"exp": "exp", "divided": "quotient(apart, count)"}
        if device == "cuda"
        else {"exp": "std::exp", "divided": "apart / count"}
    )
    found += [_QUOTIENT] if device == "cuda" and "Moments" in pieces else []
    found += [_PIECES[name].format(device=qualifier, **words) for name in pieces]
    if device == "cuda" and re.search(r"\b(warp_fold|block_fold|cluster_fold|group_fold)\b", body):
        found.append(_ACROSS.format())
        found += [_SHUFFLES[name].format() for name in pieces if name in _SHUFFLES]
        found.append(_WARP_FOLD.format())
        if "block_fold" in body or "cluster_fold" in body:
            found.append(_BLOCK_FOLD.format())
    if "column_fold" in body:
        found.append(_COLUMN_FOLD.format())
    if device == "cuda" and "as_pack" in body:
        found.append(_WORDS.format())
    if device == "cuda" and "block_scan" in body:
        found.append(_BLOCK_SCAN.format())
    products = set(re.findall(r"\b(multiply_tiles|multiply_thin|multiply_halves|convolve_planes)\b", body))
    if products or "cluster_fold" in body:
        found.append(tensor_cores.ARCHITECTURES)
    if products - {"convolve_planes"}:
        found.append(tensor_cores.TILES)
    if products & {"multiply_tiles", "multiply_thin"}:
        found.append(tensor_cores.PRELUDE)
    if "multiply_thin" in products:
        found.append(thin_tiles.PRELUDE)
    if products - {"multiply_tiles", "multiply_thin"}:
        found.append(hopper.PRELUDE)
    if "multiply_halves" in products:
        found.append(halves.PRELUDE)
    if "convolve_planes" in products:
        found.append(planes.PRELUDE)
    if "cluster_fold" in body:
        found.append(kept.PRELUDE)
    if "group_fold" in body:
        found.append(block_groups.prelude())
    if device == "cuda" and ("round_to_tf32_even" in body or "Recurrence" in body):
        found.append(_TF32)
    if "Recurrence" in body:
        found.append(recurrences.prelude(device))
    includes = "".join(include for word, include in CUDA_HALVES.items() if word in body + "".join(found))
    return (includes + CUDA_INCLUDES if device == "cuda" else CPP_INCLUDES + "\n" + CPP_OPTIONS) + "".join(
        "\n" + text for text in found
    )
