"""Two 16-bit floats an instruction, only where that rounds to what it was."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest

from harness.device import cuda_home
from kernels import catalog as kernels
from tests.nodes.rewrites.emulate.emulation import emulated
from tests.nodes.rewrites.test_cuda_rewrites import ROOT, after, flat, refused

LANES = """\
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T, int N>
struct alignas(N * sizeof(T)) Pack { T at[N]; };

template <typename T, int N>
__global__ void lanes(const Pack<T, N>* a, const Pack<T, N>* b, Pack<T, N>* y) {
  const Pack<T, N> x = a[threadIdx.x], z = b[threadIdx.x];
  Pack<T, N> out;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float v = static_cast<float>(x.at[k]);
    out.at[k] = static_cast<T>(v * static_cast<float>(z.at[k]));
  }
  y[threadIdx.x] = out;
}
"""
VALUE = "v * static_cast<float>(z.at[k])"


def with_value(text: str) -> str:
    return LANES.replace(VALUE, text)


def test_how_it_reads() -> None:
    new = after(LANES, "half2_arithmetic")
    assert (
        """\
  Pack<T, N> out;
  if constexpr (sizeof(T) == 2 && N % 2 == 0) {  // each result is rounded once, as by way of float
#pragma unroll
    for (int k = 0; k < N; k += 2) {
      const auto v = two(&x.at[k]);
      put_two(&out.at[k], __hmul2(v, two(&z.at[k])));
    }
  } else {
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float v = static_cast<float>(x.at[k]);
      out.at[k] = static_cast<T>(v * static_cast<float>(z.at[k]));
    }
  }
  y[threadIdx.x] = out;
"""
        in new
    )
    assert new.count(" two(const ") == 2, "for both types that the file includes"
    concrete = LANES.replace("template <typename T, int N>\n__global__", "template <int N>\n__global__")
    concrete = concrete.replace("Pack<T, N>", "Pack<__half, N>").replace("static_cast<T>(v", "__float2half(v")
    assert "if constexpr (N % 2 == 0)" in after(concrete, "half2_arithmetic")


@pytest.mark.parametrize(
    ("value", "packed"),
    [
        ("v + 0.5f", "__hadd2(v, both(v, 0.5f))"),
        ("2.0f - v", "__hsub2(both(v, 2.0f), v)"),
        ("fmaxf(v, 0.0f) * v", "__hmul2(__hmax2(v, both(v, 0.0f)), v)"),
        ("fminf(v * v, 6.0f)", "__hmin2(__hmul2(v, v), both(__hmul2(v, v), 6.0f))"),
        ("-(fabsf(v) * v)", "__hneg2(__hmul2(__habs2(v), v))"),
        ("v > 0.0f ? v : 0.0f", "__hmax2(v, both(v, 0.0f))"),
        ("v * v + static_cast<float>(z.at[k])", "__hfma2(v, v, two(&z.at[k]))"),
        ("1.0f + v * v", "__hfma2(v, v, both(v, 1.0f))"),
    ],
)
def test_what_rounds_once_is_packed(value: str, packed: str) -> None:
    assert f"put_two(&out.at[k], {packed});" in after(with_value(value), "half2_arithmetic")


@pytest.mark.parametrize(
    "value",
    [
        "v * v * v",
        "(v + 1.0f) * v",
        "v * v + v * v",
        "v * v - static_cast<float>(z.at[k])",
        "v * 0.1f",  # no 16-bit float
        "v * 1e9f",
        "v / 2.0f",
        "expf(v)",
        "v * static_cast<float>(z.at[N - 1 - k])",
        "v > 0.0f ? v : 1.0f",
        "static_cast<float>(out.at[0])",
        "0.5f",
    ],
)
def test_what_rounds_more_often_stays_in_float(value: str) -> None:
    assert refused(with_value(value), "half2_arithmetic")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("struct alignas(N * sizeof(T)) Pack", "struct Pack"),  # two elements of it may lie anywhere
        ("k < N", "k < (int)blockDim.x"),
        ("const float v = ", "float v = 0; v += "),
        ("<T, N> x = a", "<float, N> x = a"),
        ("#pragma unroll\n", "#pragma unroll 4\n"),
        ("int N>\n__global__", "int N>\n__device__ void two() {}\ntemplate <typename T, int N>\n__global__"),
    ],
)
def test_loops_that_are_not_understood_stay(old: str, new: str) -> None:
    assert old in LANES
    assert refused(LANES.replace(old, new), "half2_arithmetic")


def test_a_limit_keeps_what_is_not_a_number() -> None:
    text = LANES.replace(
        "const float v = static_cast<float>(x.at[k]);",
        "float v = static_cast<float>(x.at[k]);\n    if (v < 0.0f) v = 0.0f;",
    )
    assert "v = __hmax2_nan(v, both(v, 0.0f));" in flat(after(text, "half2_arithmetic"))
    assert refused(text.replace("v = 0.0f;", "v = 1.0f;"), "half2_arithmetic")


def test_rounding_a_float_result_changes_nothing() -> None:
    """What the rewrite rests on: over random bits, from a float as from the exact result."""
    bits = np.random.default_rng(0).integers(0, 1 << 16, (2, 500_000), dtype=np.uint16).view(np.float16)
    a, b = bits[:, np.isfinite(bits).all(axis=0)]
    with np.errstate(over="ignore"):
        for operation in (np.multiply, np.add, np.subtract):
            exact = operation(a.astype(np.float64), b.astype(np.float64)).astype(np.float16)
            by_float = operation(a.astype(np.float32), b.astype(np.float32)).astype(np.float16)
            assert np.array_equal(exact, by_float)


@pytest.mark.slow
@pytest.mark.parametrize("baseline", ["plain", "vector"])
def test_a_kernel_computes_the_same(baseline: str, tmp_path: Path) -> None:
    folder = ROOT / "tests/inputs/relu_squared"
    steps = ("vectorize", "half2_arithmetic") if baseline == "plain" else ("half2_arithmetic",)
    text = after(kernels.load(str(folder)).baseline("cuda", baseline)[1].read_text(), *steps)
    (tmp_path / "candidate.cu").write_text(text)
    ended = emulated(folder, tmp_path / "candidate.cu", "0")
    assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.mark.slow
@pytest.mark.skipif(cuda_home() is None or not shutil.which("cuobjdump"), reason="nvcc and cuobjdump")
def test_the_machine_code_gets_shorter(tmp_path: Path) -> None:
    text = (
        LANES + "\ntemplate __global__ void lanes(const Pack<__half, 8>*, const Pack<__half, 8>*, Pack<__half, 8>*);\n"
    )
    found = []
    for name, source in (("before", text), ("after", after(text, "half2_arithmetic"))):
        (tmp_path / f"{name}.cu").write_text(source)
        nvcc = str(cuda_home() / "bin" / "nvcc")
        cubin = tmp_path / f"{name}.cubin"
        subprocess.run(
            [nvcc, "-std=c++17", "-O3", "-arch=sm_90", "-cubin", "-o", cubin, tmp_path / f"{name}.cu"], check=True
        )
        sass = subprocess.run(["cuobjdump", "-sass", cubin], check=True, capture_output=True, text=True).stdout
        found.append((sass.count("HADD2.F32"), sass.count("HMUL2") + sass.count("HFMA2")))
    assert found == [(16, 0), (0, 4)]
