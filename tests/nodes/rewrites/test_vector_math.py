"""How exact the vectorisable functions are, in both forms, over floats of every size."""

from __future__ import annotations

import ctypes
import subprocess

import numpy as np
import pytest

from harness.backends import cpu
from harness.device import facts as device_facts
from nodes.rewrites.cpu import lanes_text as _lanes_text
from nodes.rewrites.cpu import vector_math as cpu_vector_math

ULPS = {"exp": 2.2, "log": 1.5, "log1p": 2.0, "tanh": 2.5, "erf": 2.5}
"""Largest error allowed, in units in the last place. Measured over a tenth of all floats: 2.17, 0.81, 1.44, 1.88, 2.33."""
LANES_ULPS = ULPS | {"exp": 1.1, "sin": 1.6, "cos": 1.6}
"""Over lanes the exponential goes by a table. Measured over a 37th of all floats: 1.071, sin and cos 1.55."""
HEADERS = "#include <algorithm>\n#include <cmath>\n#include <cstdint>\n#include <cstring>\n#include <immintrin.h>\n"


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    with_lanes = device_facts("cpu").architecture.startswith("avx512")
    text = HEADERS + "\n".join(text for text, _ in cpu_vector_math._FUNCTIONS.values())
    if with_lanes:
        text += _lanes_text.text({f"{name}_lanes" for name in LANES_ULPS} | {"store"}, "", "")
    for name in LANES_ULPS:
        if name in ULPS:
            text += f"""
            extern "C" void scalar_{name}(const float* x, float* y, double* right, int64_t n) {{
                #pragma omp simd
                for (int64_t i = 0; i < n; ++i) {{ y[i] = simd_{name}(x[i]); }}
                for (int64_t i = 0; i < n; ++i) {{ right[i] = {name}(static_cast<double>(x[i])); }}
            }}
            """
        if with_lanes:
            text += f"""
            extern "C" void lanes_{name}(const float* x, float* y, double* right, int64_t n) {{
                for (int64_t i = 0; i < n; i += LANES) {{
                    const int64_t count = std::min<int64_t>(LANES, n - i);
                    store_lanes(y + i, {name}_lanes(load_lanes(x + i, count)), count);
                }}
                for (int64_t i = 0; i < n; ++i) {{ right[i] = {name}(static_cast<double>(x[i])); }}
            }}
            """
    folder = tmp_path_factory.mktemp("math")
    (folder / "math.cpp").write_text(text)
    command = ["g++", *cpu.FLAGS, "-o", str(folder / "math.so"), str(folder / "math.cpp")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "warning" not in done.stderr
    return ctypes.CDLL(str(folder / "math.so"))


@pytest.mark.parametrize(
    ("form", "name"), [*(("scalar", name) for name in sorted(ULPS)), *(("lanes", name) for name in sorted(LANES_ULPS))]
)
def test_against_fp64(library, form, name):
    if not hasattr(library, f"{form}_{name}"):
        pytest.skip("lanes need AVX-512")
    every = np.arange(0, 2**32, 4999, dtype=np.uint64).astype(np.uint32)
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
    assert error.max() <= (ULPS if form == "scalar" else LANES_ULPS)[name], x[~special][error.argmax()]
