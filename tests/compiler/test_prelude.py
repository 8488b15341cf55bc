"""What generated CUDA calls, one function at a time, in the emulation."""

from __future__ import annotations

import ctypes
import math
import random

import pytest

from compiler.codegen.host import _prelude
from tests.nodes.rewrites.emulate.emulation import library

CALLS = """
#define WITHOUT_CLUSTERS
#define WITHOUT_FP8
#define TRIGGER_WHEN 1
#include <string.h>
{prelude}
extern "C" int quotient(int value, int64_t by) {{ return value / Divisor(by); }}
extern "C" int remainder_of(int value, int64_t by) {{ return value % Divisor(by); }}
extern "C" void shifted_16(const int16_t* from, const int16_t* begin, int64_t count, int16_t* made) {{
    const auto pack = load_shifted<8>(from, begin, count);
    for (int lane = 0; lane < 8; ++lane) {{ made[lane] = pack.at[lane]; }}
}}
extern "C" void shifted_8(const int8_t* from, const int8_t* begin, int64_t count, int8_t* made) {{
    const auto pack = load_shifted<8>(from, begin, count);
    for (int lane = 0; lane < 8; ++lane) {{ made[lane] = pack.at[lane]; }}
}}
extern "C" void shifted_32(const int32_t* from, const int32_t* begin, int64_t count, int32_t* made) {{
    const auto pack = load_shifted<8>(from, begin, count);
    for (int lane = 0; lane < 8; ++lane) {{ made[lane] = pack.at[lane]; }}
}}
extern "C" float expm1_of(float x) {{ return fast_expm1(x); }}
extern "C" float log1p_of(float x) {{ return fast_log1p(x); }}
extern "C" int differ(int count, const float* a, const float* b) {{
    int found = 0;
    for (int at = 0; at < count; ++at) {{
        const float scale = scale_of(b[at]), by = b[at] * scale;
        const float quotient = a[at] / b[at], ours = divided(a[at] * scale, by, 1.0f / by);
        found += memcmp(&quotient, &ours, 4) != 0 && !(quotient != quotient && ours != ours);
    }}
    return found;
}}
"""


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    return library(CALLS.format(prelude=_prelude()), tmp_path_factory.mktemp("prelude"))


def test_a_divisor_divides_as_division_does(calls):
    draw = random.Random(0)
    sizes = [1, 2, 3, 5, 7, 641, 2**16 - 1, 2**16, 2**16 + 1, 2**30 - 1, 2**30, 2**30 + 1, 2**31 - 1]
    sizes += [draw.randrange(1, 1 << draw.randrange(1, 31)) for _ in range(200)]
    for size in sizes:
        values = [0, 1, size - 1, size, 2**31 - 1, *(draw.randrange(2**31) for _ in range(20))]
        values += [many * size - off for many in (1, 3, 1000) for off in (0, 1) if many * size < 2**31]
        for value in values:
            found = (calls.quotient(value, ctypes.c_int64(size)), calls.remainder_of(value, ctypes.c_int64(size)))
            assert found == divmod(value, size), (value, size)


def test_a_quotient_by_a_reciprocal_has_a_division_s_bits(calls):
    draw = random.Random(1)
    edges = [
        (1e30, 3e-39),
        (0.0, 0.0),
        (1.0, 0.0),
        (0.0, math.inf),
        (math.inf, 2.0),
        (math.nan, 2.0),
        (1e-40, 1e-39),
        (3e-3, 7e-40),
        (5e8, 3e-31),
        (-7.0, 1e-30),
    ]
    pairs = [(math.ldexp(draw.uniform(-1, 1), draw.randrange(-30, 30)), math.ldexp(draw.uniform(0.5, 1), draw.randrange(-30, 30))) for _ in range(100000)]  # fmt: skip
    a, b = ((ctypes.c_float * (len(edges) + len(pairs)))(*side) for side in zip(*edges, *pairs, strict=True))
    assert calls.differ(len(a), a, b) == 0


@pytest.mark.parametrize("name", ["expm1", "log1p"])
def test_approximate_functions_are_exact_enough_for_16_bits_near_zero_too(calls, name):
    ours, exact = getattr(calls, f"{name}_of"), getattr(math, name)
    ours.argtypes, ours.restype = [ctypes.c_float], ctypes.c_float
    draw = random.Random(2)
    values = [
        sign * math.ldexp(draw.uniform(0.5, 1), power) for power in range(-40, 5) for sign in (1, -1) for _ in range(20)
    ]
    for value in (ctypes.c_float(one).value for one in values if one > -0.99 or name == "expm1"):
        assert abs(ours(value) - exact(value)) <= 4e-6 * abs(exact(value)), value
    assert ours(0.0) == 0.0 and math.isnan(ours(math.nan)) and ours(math.inf) == math.inf


@pytest.mark.parametrize("bits", [8, 16, 32])
@pytest.mark.parametrize("start", [0, 1])
def test_a_pack_from_any_place_is_what_lies_there(calls, bits, start):
    """Near the ends of the tensor too, where the pieces around it would lie outside."""
    kind = {8: ctypes.c_int8, 16: ctypes.c_int16, 32: ctypes.c_int32}[bits]
    count = 70
    memory = (kind * (count + start + 32))(*[(7 * at + 3) % 120 for at in range(count + start + 32)])
    begin = ctypes.addressof(memory) + start * bits // 8
    for first in range(count - 7):
        made = (kind * 8)()
        at = ctypes.c_void_p(begin + first * bits // 8)
        getattr(calls, f"shifted_{bits}")(at, ctypes.c_void_p(begin), ctypes.c_int64(count), made)
        assert list(made) == list(memory[start + first : start + first + 8]), first
