"""The vector forms that loops are given are there, and are as exact as is promised, over floats of every size."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from harness.backends import cpu
from harness.device import facts as device_facts
from kernels import catalog
from nodes.rewrites.cpu import lanes_text, vector_math
from nodes.rewrites.registry import Facts
from nodes.rewrites.syntax.source import Source

WITH_LANES = device_facts("cpu").architecture.startswith("avx512")
NAMES = sorted(name for name, arguments in vector_math.VECTOR_FUNCTIONS.items() if arguments == 1)
ULPS = 4.0
"""Units in the last place that glibc allows its vector forms."""
EXP_LANES_ULPS = 1.1
"""Ours. Measured over a 37th of all floats: 1.071."""


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    loops = "".join(f"for (int64_t i = 0; i < n; ++i) {{ y[i] = {name}(x[i]); }}\n" for name in NAMES)
    text = f"#include <cmath>\nvoid all(const float* x, float* y, int64_t n) {{\n{loops}}}\n"
    text = vector_math.rewrite(
        Source(text, "cpu"), Facts(spec=catalog.load("silu_and_mul").spec, device=device_facts("cpu"))
    ).replace("void all(", "static inline void all(")
    text = "#include <algorithm>\n#include <cstdint>\n#include <immintrin.h>\n" + text
    if WITH_LANES:
        wanted = " ".join(f"{name.removesuffix('f')}_lanes" for name in NAMES)
        text += lanes_text.text(f"load_lanes store_lanes {wanted}", "")
    for name in NAMES:
        text += f"""
        extern "C" void loop_{name}(const float* x, float* y, double* right, int64_t n) {{
            #pragma omp simd
            for (int64_t i = 0; i < n; ++i) {{ y[i] = {name}(x[i]); }}
            for (int64_t i = 0; i < n; ++i) {{ right[i] = {name.removesuffix("f")}(static_cast<double>(x[i])); }}
        }}
        """
        if WITH_LANES:
            text += f"""
            extern "C" void lanes_{name}(const float* x, float* y, double* right, int64_t n) {{
                for (int64_t i = 0; i < n; i += LANES) {{
                    const int64_t count = std::min<int64_t>(LANES, n - i);
                    store_lanes(y + i, {name.removesuffix("f")}_lanes(load_lanes(x + i, count)), count);
                }}
                for (int64_t i = 0; i < n; ++i) {{ right[i] = {name.removesuffix("f")}(static_cast<double>(x[i])); }}
            }}
            """
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.cpp").write_text(text)
    command = ["g++", *cpu.FLAGS, "-o", str(folder / "math.so"), str(folder / "math.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return ctypes.CDLL(str(folder / "math.so"), mode=ctypes.RTLD_LOCAL)


@pytest.mark.parametrize("form", ["loop", "lanes"])
@pytest.mark.parametrize("name", NAMES)
def test_against_fp64(library, form, name):
    if form == "lanes" and not WITH_LANES:
        pytest.skip("lanes need AVX-512")
    every = np.arange(0, 2**32, 4999 if name == "expf" else 99991, dtype=np.uint64).astype(np.uint32)
    ends = [0, 1, 0x7F800000, 0x7FC00000, 0x7FFFFFFF, 0x7F7FFFFF, 0x3F800000, 0x007FFFFF, 0x00800000]
    x = np.concatenate([every, np.array(ends + [0x80000000 | end for end in ends], dtype=np.uint32)]).view(np.float32)
    y, right = np.empty_like(x), np.empty(len(x))
    pointers = [ctypes.c_void_p(array.ctypes.data) for array in (x, y, right)]
    getattr(library, f"{form}_{name}")(*pointers, ctypes.c_int64(len(x)))
    with np.errstate(all="ignore"):
        wanted = right.astype(np.float32)
        special = ~np.isfinite(wanted)
        same = (y == wanted) | (np.isnan(y) & np.isnan(wanted))
        assert same[special].all(), x[special & ~same]
        ulp = np.spacing(np.abs(wanted[~special])).astype(np.float64)
        error = np.abs(y[~special].astype(np.float64) - right[~special]) / ulp
    assert not np.isnan(error).any()
    assert error.max() <= (EXP_LANES_ULPS if (form, name) == ("lanes", "expf") else ULPS), x[~special][error.argmax()]
