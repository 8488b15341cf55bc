"""C++ in other people's styles, with traps: whatever the CPU rewrites make of it computes what it computed before.

Each takes x and y, float [rows, n], and changes y; `{`...`}` is the body of a function of its own, what stands before it
goes in front. All of them are one file, so that a rewrite is compiled once.
"""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from harness.backends import cpu
from nodes.rewrites import Facts, catalog
from nodes.rewrites.syntax.source import Source
from tests.nodes.rewrites.steps import SPEC
from tests.nodes.rewrites.test_cpu_kernels import FACTS, order

SETTLING = ["unflatten_loop"]
"""Of these, every trap's outcome is the same to the bit."""
HEADERS = """\
#include <immintrin.h>
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <numeric>
#include <vector>

"""
TRAPS: dict[str, str] = {
    "early_returns": """
static inline float hard(float v) { if (v <= -1) return 0; if (v >= 1) return v; return v * (v + 3) / 6; }
static float sides(float v) { if (v > 0) { return 1; } else if (v < 0) { return -1; } else { return 0; } }
static int whole(float v) { if (v > 0) return v * 10; return 16777217; }
static float late(float v) { float w = v; if (v > 0) { w = 2; } if (v > 1) return w; return -w; }
{
    for (int i = 0; i < n; ++i) { y[i] = hard(x[i]); y[n + i] = sides(x[i]) + late(x[i]); y[2 * n + i] = whole(x[i]); }
}""",
    "functors": """
struct Soft { float operator()(float v) const { if (v > 2) { return v; } return std::log1p(std::exp(v)); } };
struct Gate { Soft soft; float operator()(float v) const { return v * soft(v); } };
struct Scaled { float by = 3; float operator()(float v) const { return v * by; } };
template <typename T, typename Op>
void each(const T* from, T* to, size_t m, Op op) { for (size_t i = 0; i < m; ++i) { to[i] = op(from[i]); } }
template <class F>
static void once(const float* from, float* to, int64_t m, const F& f) { for (int64_t i = 0; i < m; ++i) { to[i] = f(from[i]) + f(1); } }
template <class F>
static void held(const float* from, float* to, int64_t m, F f) { for (int64_t i = 0; i < m; ++i) { to[i] = f(from[i]); } }
{
    each(x, y, n, Gate{}); each(x + n, y + n, n, Scaled{});
    once(x, y + 2 * n, n, Soft());
    held(x, y, n / 2, Scaled{});
}""",
    "row_by_row": """{
    for (int64_t r = 0; r < rows; ++r) { for (int64_t c = 0; c < n; ++c) { y[c] = y[c] * 0.5f + x[r * n + c]; } }
    for (int64_t r = 1; r < rows; ++r) { for (int64_t c = 0; c < n; ++c) { y[r * n + c] += y[(r - 1) * n + c]; } }
    for (int64_t r = 1; r < rows; ++r) { for (int64_t c = 0; c < n - 1; ++c) { y[r * n + c] += y[(r - 1) * n + c + 1]; } }
    for (int64_t r = 0; r < rows; ++r) { for (int64_t c = 0; c < n; ++c) { y[c / 2] += x[r * n + c]; } }
}""",
    "rows_that_overlap_in_bytes": """
static void sliding(char* data, size_t step, int64_t width, int64_t height) {
    for (int64_t r = 1; r < height; ++r) {
        float* row = (float*)(data + r * step);
        for (int64_t i = 0; i < width; ++i) { row[i] = row[i] * 0.5f + ((float*)data)[i]; }
    }
}
{
    sliding((char*)y, sizeof(float), n, rows);
}""",
    "one_array_as_two_types": """{
    const int* bits = (const int*)y;
    for (int64_t i = 1; i < rows * n; ++i) { y[i] = x[i] + (bits[i - 1] < 0 ? 1.0f : 2.0f); }
}""",
    "planes_that_are_not_whole": """
static void ragged(const float* a, float* out, int64_t total, int64_t width) {
    for (int64_t i = 0; i < total; ++i) { out[i] = a[i / width] + a[i % width]; }
}
{
    ragged(x, y, rows * n - 3, n); ragged(x, y + 1, rows * n - 4, n - 1);
}""",
    "angles_that_are_changed": """{
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
            float a = expf(-x[i] * x[i]);
            if (r > 0) a += 1.0f;
            y[r * n + i] = a + sinf(x[i] + a);
        }
    }
}""",
    "vectors_by_hand": """
static void halves(const float* a, float* b, size_t n) {
    size_t i = 0;
    for (; i + 4 <= n; i += 4) { _mm_storeu_ps(b + i, _mm_mul_ps(_mm_loadu_ps(a + i), _mm_set1_ps(0.5f))); }
    for (; i < n; ++i) { b[i] = a[i] * 0.5f; }
}
{
    for (int64_t r = 0; r < rows; ++r) { halves(x + r * n, y + r * n, n); }
}""",
    "vectors_that_overlap": """{
    for (int64_t r = 0; r < rows * 4; ++r) { _mm_storeu_ps(y + r, _mm_add_ps(_mm_loadu_ps(x + r), _mm_loadu_ps(y + r + 1))); }
    for (int64_t r = 0; r < rows; ++r) { _mm_storeu_ps(y + n + r * 3, _mm_loadu_ps(x + r * 4)); }
}""",
    "nan_beside_numbers": """{
    std::vector<float> v(x, x + n);
    v[1] = NAN; v[3] = -0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const float a = std::max(v[i], 0.25f);
        const float b = std::max(0.25f, v[i]);
        const float c = std::min(v[i], 0.25f);
        const float d = fmaxf(v[i], 0.25f);
        const float e = fminf(0.25f, v[i]);
        const float f = std::clamp(v[i], -0.5f, 0.5f) + fmaxf(x[i], v[i]);
        y[i] = (a != a ? 7.0f : a) + 2 * (b != b ? 7.0f : b) + 4 * (c != c ? 7.0f : c) + 8 * (d != d ? 7.0f : d)
             + 16 * (e != e ? 7.0f : e) + 32 * (f != f ? 7.0f : f);
    }
    for (int64_t i = 1; i < n; ++i) { y[n + i] = 1.0f / std::max(v[i] * 0.0f, -0.0f) > 0.0f ? 1.0f : 2.0f; }
}""",
    "rounded_to_bytes": """{
    std::vector<int8_t> q(n); std::vector<uint8_t> u(n);
    for (int64_t i = 0; i < n; ++i) { q[i] = static_cast<int8_t>(rintf(x[i] * 90.0f)); }
    for (int64_t i = 0; i < n - 1; ++i) { u[i] = static_cast<uint8_t>(std::clamp((int32_t)std::lround(x[i] * 90.0f), 0, 255)); }
    for (int64_t i = 0; i < n - 2; ++i) { y[i] = q[i] * 0.5f + static_cast<float>(u[i]) * (int)(x[i] * 3.0f); }
    for (int64_t i = 0; i < n - 4; ++i) { y[n + i] = q[i] * q[i + 1] + (q[i] + 3) * 0.5f + q[i] / 2; }
}""",
    "pairs_that_overlap": """{
    for (int64_t i = 0; i < n; i += 2) { y[i] += x[i]; y[i + 2] += y[i] * 0.5f; }
    for (int64_t i = 1; i < n; i += 3) { y[n + i - 1] = x[i]; y[n + i + 1] = y[n + i - 1]; }
}""",
}  # fmt: skip
DEVICE = FACTS


def source() -> str:
    parts = [HEADERS]
    for name, text in TRAPS.items():
        before, _, body = f"\n{text}".rpartition("\n{\n")
        parts.append(
            f'{before}\nextern "C" void {name}(const float* x, float* y, int64_t rows, int64_t n) {{\n{body}\n\n'
        )
    return "".join(parts)


@pytest.fixture(scope="module")
def expected(tmp_path_factory) -> dict[str, list[np.ndarray]]:
    return outcomes(source(), tmp_path_factory.mktemp("plain"))


def outcomes(text: str, folder) -> dict[str, list[np.ndarray]]:
    (folder / "traps.cpp").write_text(text)
    # Without contraction, so that what stays the same on paper stays the same to the bit.
    flags = [*(flag for flag in cpu.FLAGS if flag not in {"-O3", "-Wall"}), "-O1", "-w", "-ffp-contract=off"]
    command = ["g++", *flags, "-o", str(folder / "traps.so"), str(folder / "traps.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:4000]
    library, found = ctypes.CDLL(str(folder / "traps.so")), {}
    for name in TRAPS:
        for rows, n in ((3, 37), (4, 16), (3, 8)):
            x, y = np.random.default_rng(n).standard_normal((2, (rows + 2) * n)).astype(np.float32)
            pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y)]
            getattr(library, name)(*pointers, ctypes.c_int64(rows), ctypes.c_int64(n))
            found.setdefault(name, []).append(y)
    return found


def rewritten(text: str, steps: list[str]) -> str:
    for step in steps:
        new = catalog()[step](Source(text, "cpu"), Facts(spec=SPEC, device=DEVICE))
        text = new or text
    text = text.replace("COLUMNS 1024 ", "COLUMNS 16 ")  # more than one block of them
    return text.replace("PARALLEL_FROM 16384", "PARALLEL_FROM 0")  # threads at any size


SETTLED = rewritten(source(), sorted(SETTLING, key=order().index))


def test_the_traps_are_understood():
    assert not Source(source(), "cpu").root.has_error and not Source(SETTLED, "cpu").root.has_error


def test_all_settling_steps_one_after_the_other(expected, tmp_path):
    _same(outcomes(SETTLED, tmp_path), expected, exact=True)


def test_the_whole_bundle(expected, tmp_path):
    _same(outcomes(rewritten(source(), order()), tmp_path), expected, exact=False)


def _same(found: dict[str, list[np.ndarray]], expected: dict[str, list[np.ndarray]], *, exact: bool) -> None:
    near = 0.0 if exact else 1e-5
    for name in TRAPS:
        for got, wanted in zip(found[name], expected[name], strict=True):
            np.testing.assert_allclose(got, wanted, rtol=near, atol=near, err_msg=name)
